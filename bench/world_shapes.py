"""The cases of bench/world.py: named problems that models run, with backward if training runs them too."""

from peers_shapes import RAGGED, Shape

BOTH, FORWARD, BACKWARD, DECODE = ("forward", "backward"), ("forward",), ("backward",), ("decode",)
# Eight sequences of a batch of 16384 tokens.
UNEVEN = (6144, 4096, 2560, 1536, 1024, 512, 384, 128)


def case(name, directions=BOTH, batch=4, heads=16, heads_k=None, length=4096, dim=128, causal=True, **options):
    """A case with `length` queries and keys, unless len_q or len_k are given."""
    lengths = {"len_q": options.pop("len_q", length), "len_k": options.pop("len_k", length)}
    if "lengths" in options:
        batch, lengths = len(options["lengths"]), dict.fromkeys(("len_q", "len_k"), max(options["lengths"]))
    return [Shape(name, direction, batch, heads, heads_k or heads, head_dim=dim, causal=causal, **lengths, **options)
            for direction in directions]


def few(queries, keys, heads, heads_k, batch=1):
    """Few queries over many keys, in a call without a cache."""
    return case(f"{queries} queries x {keys // 1024}k, {heads}/{heads_k}, B={batch}", FORWARD, batch, heads, heads_k,
                causal=False, len_q=queries, len_k=keys)


# The cases in which flex_attention may be the fastest peer, or the only one. Others leave it out, because it compiles
# for seconds for each kernel.
FLEX = ("softcap 30", "Gemma 2: 16/8, D=256, softcap 50, 8k", "ALiBi", "bias", "bias with gradient",
        "documents by mask tensor", "gpt-oss: 64/8, D=64, window 128, sinks, 8k", "softcap 30, window 1024", "windows of 64, D=32, learned bias")


def options():
    yield case("causal")
    yield case("full", causal=False)
    yield case("causal, D=64", heads=32, dim=64)
    yield case("causal, D=256", heads=8, dim=256)
    yield case("softcap 30", softcap=30.0)
    yield case("Gemma 2: 16/8, D=256, softcap 50, 8k", batch=2, heads_k=8, length=8192, dim=256, softcap=50.0)
    yield case("ALiBi", alibi=True)
    yield case("bias", causal=False, bias="fixed")
    yield case("bias with gradient", BACKWARD, causal=False, bias="learned")
    yield case("mask tensor", causal=False, mask="random")
    yield case("documents by mask tensor", mask="documents")
    yield case("dropout 0.1", dropout=0.1)
    yield case("window 1024", window=1023)
    yield case("window 1024, 16k", batch=1, length=16384, window=1023)
    yield case("sinks", sinks=True)
    yield case("gpt-oss: 64/8, D=64, window 128, sinks, 8k", batch=2, heads=64, heads_k=8, length=8192, dim=64,
               window=127, sinks=True)
    yield case("softcap 30, window 1024", softcap=30.0, window=1023)
    yield case("deterministic", BACKWARD, deterministic=True)
    yield case("padded, half full", padded=True)
    yield case("heads first in memory", heads_first=True)


def heads():
    yield case("GQA 32/8, 8k", batch=2, heads=32, heads_k=8, length=8192)
    yield case("GQA 64/8", heads=64, heads_k=8)
    yield case("MQA 16/1", heads_k=1)
    yield case("192/128", batch=2, heads=32, dim=192, head_dim_v=128)


def head_sizes():
    yield case("D=32", heads=64, dim=32)
    yield case("Stable Diffusion: D=40, full", batch=8, heads=8, dim=40, causal=False)
    yield case("ViT: D=72, 577 tokens, full", batch=32, length=577, dim=72, causal=False)
    for dim, count in ((80, 25), (96, 21), (112, 18), (160, 12), (192, 10), (224, 9)):
        yield case(f"D={dim}", heads=count, dim=dim)


def batches():
    yield case("packed, 8 uneven", lengths=UNEVEN)
    yield case("packed, 16 ragged", lengths=RAGGED)
    yield case("packed, 32 x 512", lengths=(512,) * 32)
    yield case("one sequence of 512, 8 heads", batch=1, heads=8, length=512)
    yield case("one sequence of 1k, 8 heads", batch=1, heads=8, length=1024)
    yield case("one sequence of 2k, 4 heads, full", batch=1, heads=4, length=2048, causal=False)
    yield case("one sequence of 16k, 2 heads", batch=1, heads=2, length=16384)


def few_queries():
    yield few(1, 32768, 32, 8)
    yield few(1, 32768, 8, 8)
    yield few(4, 8192, 32, 8, batch=8)
    yield few(16, 32768, 32, 8)
    yield few(16, 32768, 8, 8)
    yield few(64, 32768, 8, 8)
    yield few(128, 32768, 8, 8)
    yield few(256, 8192, 8, 1, batch=4)
    yield few(512, 16384, 32, 8)


def small_and_cross():
    """Vision, text and diffusion models: many short sequences, or few keys."""
    yield case("Swin: windows of 49, D=32", batch=2048, heads=4, length=49, dim=32, causal=False)
    yield case("windows of 64, D=32, learned bias", batch=2048, heads=4, length=64, dim=32, causal=False, bias="learned")
    yield case("BERT: D=64, 128 tokens, full", batch=128, heads=12, length=128, dim=64, causal=False)
    yield case("BERT: D=64, 512 tokens, full", batch=32, heads=16, length=512, dim=64, causal=False)
    yield case("ViT: D=64, 197 tokens, full", batch=64, heads=12, length=197, dim=64, causal=False)
    yield case("Whisper: D=64, 1500 frames, full", batch=16, heads=20, length=1500, dim=64, causal=False)
    yield case("SDXL: D=64, 1k tokens, full", batch=16, heads=20, length=1024, dim=64, causal=False)
    yield case("SDXL: D=64, 4k queries x 77 keys", batch=8, heads=10, dim=64, causal=False, len_k=77)
    yield case("16 x 256, 32 heads", batch=16, heads=32, length=256)


def few_heads():
    """What one GPU of several computes, and long documents."""
    yield case("4/1 heads, 4k, B=2", batch=2, heads=4, heads_k=1)
    yield case("8/1 heads, 8k, B=1", batch=1, heads=8, heads_k=1, length=8192)
    yield case("4 heads, 8k, D=64, B=1", batch=1, heads=4, length=8192, dim=64)
    yield case("one sequence of 2k, 16 heads", batch=1, length=2048)
    yield case("one sequence of 32k, 8 heads", batch=1, heads=8, length=32768)
    yield case("one sequence of 64k, 2/1 heads", batch=1, heads=2, heads_k=1, length=65536)


def chunked_prefill():
    for page_size in (0, 256):
        pages = f", pages of {page_size}" if page_size else ""
        yield case(f"512 queries, 8k in a cache, 32/8, B=1{pages}", DECODE, 1, 32, 8, len_q=512, len_k=8192,
                   page_size=page_size)
        yield case(f"2k queries, 8k in a cache, 32/8, B=4{pages}", DECODE, 4, 32, 8, len_q=2048, len_k=8192,
                   page_size=page_size)


def types():
    yield case("f16", dtype="f16")
    yield case("f32, D=64", dim=64, dtype="f32", causal=False)
    yield case("f32, D=128", heads=8, dtype="f32", causal=False)


def latent_decode():
    for count in (16, 128):
        yield case(f"MLA decode, {count} heads, B=128, 4k", DECODE, 128, count, 1, dim=576, head_dim_v=512,
                   causal=False, shared_values=True, len_q=1)


def all_shapes():
    """All cases, the most important first, since a run may be interrupted."""
    for group in (options, heads, few_queries, small_and_cross, few_heads, chunked_prefill, batches, types, head_sizes,
                  latent_decode):
        for found in group():
            yield from found


# Few kernels to compile, but every way to call each library.
QUICK = (("causal", "forward"), ("causal", "backward"), ("softcap 30", "forward"), ("ALiBi", "forward"),
         ("dropout 0.1", "forward"), ("dropout 0.1", "backward"), ("GQA 32/8, 8k", "backward"),
         ("packed, 8 uneven", "forward"), ("16 queries x 32k, 8/8, B=1", "forward"), ("sinks", "backward"))


def quick_shapes():
    return [shape for shape in all_shapes() if (shape.group, shape.direction) in QUICK]
