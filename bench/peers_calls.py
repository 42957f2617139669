"""What bench/peers_cuda.py compares: the shapes, and how each library computes them.

Every library gets tensors in the layout that models use, [B, S, H, D] or packed [T, H, D], and may offer several forms
of a call; all forms are timed and the fastest counts. A library that cannot compute a shape says why (Lacks).
"""

import inspect
import warnings
from typing import NamedTuple, Tuple

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from cuflash_c import Library

TOKENS, HIDDEN = 16384, 2048
# A ragged batch of 16384 tokens, from a short chat to a long document.
RAGGED = (4096, 2048, 2048, 1536, 1280, 1024, 1024, 768, 768, 512, 512, 256, 256, 128, 64, 64)
GROUPS = ("forward", "backward", "grouped", "short", "varlen", "window", "softcap", "decode")
PEERS = ("fa3", "fa4", "torch-cudnn", "torch-flash", "torch-efficient")
BACKENDS = {"torch-cudnn": SDPBackend.CUDNN_ATTENTION, "torch-flash": SDPBackend.FLASH_ATTENTION,
            "torch-efficient": SDPBackend.EFFICIENT_ATTENTION}
sdpa = torch.nn.functional.scaled_dot_product_attention


class Lacks(Exception):
    """A library cannot compute this shape; the text is the reason."""


class Shape(NamedTuple):
    """One problem. The first fields have the names of the results file; the rest is its variant."""

    group: str
    direction: str
    batch: int
    heads_q: int
    heads_k: int
    len_q: int
    len_k: int
    head_dim: int
    causal: bool = False
    page_size: int = 0
    window: int = -1  # keys to the left of a query; -1: all of them
    softcap: float = 0.0
    lengths: Tuple[int, ...] = ()  # of a packed batch; len_q and len_k are the longest

    @property
    def variant(self):
        """What the fields of the results file do not say about this problem; empty for most."""
        words = [f"window of {self.window + 1} keys" if self.window >= 0 else "",
                 f"softcap {self.softcap:g}" if self.softcap else "",
                 f"{len(self.lengths)} packed sequences" if self.lengths else ""]
        return ", ".join(word for word in words if word)

    @property
    def pairs(self):
        """Pairs of a query and a key that see each other, of one head, all sequences together."""
        total = 0.0
        for queries, keys in [(n, n) for n in self.lengths] or [(self.len_q, self.len_k)] * self.batch:
            if self.window >= 0:  # causal, as many queries as keys
                whole = min(self.window + 1, queries)
                total += whole * (whole + 1) / 2 + (queries - whole) * (self.window + 1)
            elif self.causal:  # as the other benchmarks of this folder count: half of a square
                total += queries * keys - queries * queries / 2
            else:
                total += queries * keys
        return total

    @property
    def flops(self):
        return self.pairs * self.heads_q * self.head_dim * (10 if self.direction == "backward" else 4)

    @property
    def key_value_bytes(self):
        return 2 * 2 * self.batch * self.len_k * self.heads_k * self.head_dim

    def __str__(self):
        mask = ", causal" if self.causal else ""
        pages = f", pages of {self.page_size}" if self.page_size else ""
        extra = f", {self.variant}" if self.variant else ""
        return (f"{self.direction} B={self.batch} H={self.heads_q}/{self.heads_k} S={self.len_q}x{self.len_k} "
                f"D={self.head_dim}{mask}{pages}{extra}")


def square(group, direction, dim, length, causal, heads_k=None, **options):
    heads = 32 if heads_k else HIDDEN // dim
    return Shape(group, direction, TOKENS // length, heads, heads_k or heads, length, length, dim, causal, **options)


def all_shapes():
    lengths = (512, 1024, 2048, 4096, 8192, 16384)
    for direction in ("forward", "backward"):
        for dim in (64, 128, 256):
            for causal in (False, True):
                yield from (square(direction, direction, dim, length, causal) for length in lengths)
    for direction in ("forward", "backward"):
        yield from (square("grouped", direction, 128, length, True, heads_k=8) for length in (512, 2048, 8192))
    for batch in (1, 16):
        yield from (Shape("short", "forward", batch, 32, 8, queries, 8192, 128) for queries in (1, 4, 16, 32, 64, 128))
    for direction in ("forward", "backward"):
        for causal in (False, True):
            yield Shape("varlen", direction, len(RAGGED), 16, 16, max(RAGGED), max(RAGGED), 128, causal, lengths=RAGGED)
        yield square("window", direction, 128, 8192, True, window=1023)
        yield square("softcap", direction, 128, 4096, True, softcap=50.0)
    for batch, keys in ((128, 8192), (128, 2048), (16, 8192), (1, 65536), (1, 8192)):
        yield from (Shape("decode", "decode", batch, 32, 8, 1, keys, 128, page_size=size) for size in (0, 256, 64, 16))


def quick_shapes():
    """One of each kind, with few kernels to compile."""
    yield square("forward", "forward", 128, 2048, True)
    yield square("forward", "forward", 128, 8192, True)
    yield square("backward", "backward", 128, 4096, True)
    yield Shape("short", "forward", 1, 32, 8, 16, 8192, 128)
    yield Shape("varlen", "forward", len(RAGGED), 16, 16, max(RAGGED), max(RAGGED), 128, True, lengths=RAGGED)
    yield square("softcap", "forward", 128, 4096, True, softcap=50.0)
    yield from (Shape("decode", "decode", 16, 32, 8, 1, 8192, 128, page_size=size) for size in (0, 16))


def toy_shapes():
    """Every group at a size that a processor computes in milliseconds, for --dry-run."""
    for shape in all_shapes():
        lengths = tuple(max(1, n // 64) for n in shape.lengths)
        small = shape._replace(
            batch=len(lengths) or min(shape.batch, 2), heads_q=4, heads_k=4 * shape.heads_k // shape.heads_q,
            len_q=max(1, shape.len_q // 64), len_k=shape.len_k // 64, head_dim=shape.head_dim // 4,
            window=shape.window // 64 if shape.window >= 0 else -1, lengths=lengths)
        yield small._replace(page_size=min(small.page_size, 16))


class Tensors:
    """Inputs of a shape, normal random numbers; pages of a cache are shuffled."""

    def __init__(self, shape, device, dtype=torch.bfloat16):
        self.shape, s = shape, shape
        rows = (sum(s.lengths),) if s.lengths else None

        def make(heads, length):
            where = rows or (s.batch, length)
            return torch.randn((*where, heads, s.head_dim), device=device, dtype=torch.float32).to(dtype)

        self.q, self.k, self.v = make(s.heads_q, s.len_q), make(s.heads_k, s.len_k), make(s.heads_k, s.len_k)
        self.dout = make(s.heads_q, s.len_q) if s.direction == "backward" else None
        self.cu = torch.tensor([0, *s.lengths]).cumsum(0).to(device, torch.int32) if s.lengths else None
        self.cache_lengths = torch.full((s.batch,), s.len_k, dtype=torch.int32, device=device)
        if s.page_size:
            pages = s.batch * s.len_k // s.page_size
            order = torch.randperm(pages, device=device)
            place = torch.empty_like(order)
            place[order] = torch.arange(pages, device=device)  # page i of the cache is at place[i]
            self.pages = [t.view(pages, s.page_size, s.heads_k, s.head_dim)[order] for t in (self.k, self.v)]
            self.table = place.to(torch.int32).view(s.batch, -1)

    def by_heads(self):
        """Views [B, H, S, D]."""
        return (t.transpose(1, 2) for t in (self.q, self.k, self.v))


def gradients(tensors, function):
    """Times the backward pass alone: forward runs once here, and its graph is kept."""
    leaves = [t.detach().requires_grad_() for t in (tensors.q, tensors.k, tensors.v)]
    with torch.enable_grad():
        out = function(*leaves)
    return lambda: torch.autograd.grad(out, leaves, tensors.dout, retain_graph=True)


def directed(tensors, function):
    """A call in the direction of the shape, of function(q, k, v) -> out in the layout of q."""
    if tensors.shape.direction == "backward":
        return gradients(tensors, function)

    def run():
        with torch.no_grad():
            return function(tensors.q, tensors.k, tensors.v)
    return run


class Cuflash:
    """Through the C ABI, into buffers that exist."""

    def __init__(self, path):
        self.library = Library(path)

    def version(self):
        return self.library.lib.cuflash_version().decode()

    def forms(self, t):
        s = t.shape
        if s.direction == "decode":
            return {"cache": self.cache(t)}
        forms = {"attention": self.attention(t)}
        if s.group == "short":
            forms["cache"] = self.cache(t)
        return forms

    def attention(self, t):
        s = t.shape
        options = {"softcap": s.softcap, "window_left": s.window}
        if s.lengths:
            options |= {"cu_seqlens_q": t.cu, "cu_seqlens_k": t.cu, "max_seqlen_q": s.len_q, "max_seqlen_k": s.len_k}
            view = lambda x: x
            lse = torch.empty((s.heads_q, t.q.shape[0]), dtype=torch.float32, device=t.q.device)
        else:
            view = lambda x: x.transpose(1, 2)
            lse = torch.empty((s.batch, s.heads_q, s.len_q), dtype=torch.float32, device=t.q.device)
        o = torch.empty_like(t.q)
        q, k, v, out = view(t.q), view(t.k), view(t.v), view(o)
        forward = self.library.forward(q, k, v, out, lse, s.causal, **options)
        if s.direction != "backward":
            return called(forward, o, lse, t)
        forward()
        grads = tuple(torch.empty_like(x) for x in (t.q, t.k, t.v))
        backward = self.library.backward(q, k, v, out, lse, view(t.dout), *map(view, grads), s.causal, **options)
        return called(backward, grads, o, lse, t)

    def cache(self, t):
        s = t.shape
        o = torch.empty_like(t.q)
        k, v = t.pages if s.page_size else (t.k, t.v)
        run = self.library.attend_cache(t.q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), t.cache_lengths,
                                        o.transpose(1, 2), s.causal, block_table=t.table if s.page_size else None)
        return called(run, o, t)


def called(run, results, *kept):
    """Runs and returns the results. The C ABI has addresses alone: what they point to stays alive with the call."""
    def call(kept=kept):
        run()
        return results
    return call


def accepted(function, needed, optional=()):
    """The keyword arguments of `needed` and of `optional` that a function takes; a needed one it does not take is a
    reason not to call it. Signatures of these libraries differ from version to version."""
    names = inspect.signature(function).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in names.values()):
        for name in needed:
            if name not in names:
                raise Lacks(f"{function.__name__} of this version has no {name}")
        optional = {name: value for name, value in dict(optional).items() if name in names}
    return {**needed, **dict(optional)}


def output_of(result):
    """Some versions return the output alone, others with its log-sum-exp."""
    return result[0] if isinstance(result, (tuple, list)) else result


def require_built(module, feature):
    """FlashAttention-3 can be built without features, and a call that needs a missing one ends the process."""
    try:
        import flash_attn_config
    except ImportError:
        return
    flags = getattr(flash_attn_config, "CONFIG", {}).get("build_flags", {})
    if module.__name__.startswith("flash_attn_interface") and flags.get(f"FLASHATTENTION_DISABLE_{feature}"):
        raise Lacks(f"this build of FlashAttention-3 has no {feature}")


class FlashAttention:
    """FlashAttention-3 (flash_attn_interface) or FlashAttention-4 (flash_attn.cute): one interface, two modules."""

    def __init__(self, module):
        self.module = module

    def forms(self, t):
        s = t.shape
        if s.direction == "decode":
            return {"kvcache": self.cache(t)}
        forms = {"func": self.attention(t)}
        if s.group == "short":
            for name, make in (("func, splits", lambda: self.attention(t, num_splits=0)),
                               ("kvcache", lambda: self.cache(t))):
                try:
                    forms[name] = make()
                except Lacks:
                    pass
        return forms

    def attention(self, t, **more):
        s = t.shape
        needed = {"causal": s.causal, **more}
        if s.window >= 0:
            needed["window_size"] = (s.window, 0)
        if s.softcap:
            require_built(self.module, "SOFTCAP")
            needed["softcap"] = s.softcap
        name = "flash_attn_varlen_func" if s.lengths else "flash_attn_func"
        function = getattr(self.module, name, None)
        if function is None:
            raise Lacks(f"this version has no {name}")
        lengths = {}
        if s.lengths:
            needed |= {"cu_seqlens_q": t.cu, "cu_seqlens_k": t.cu}
            lengths = {"max_seqlen_q": s.len_q, "max_seqlen_k": s.len_k}
        options = accepted(function, needed, lengths)
        return directed(t, lambda q, k, v: output_of(function(q, k, v, **options)))

    def cache(self, t):
        s, function = t.shape, getattr(self.module, "flash_attn_with_kvcache", None)
        if function is None:
            raise Lacks("this version has no flash_attn_with_kvcache")
        needed = {"cache_seqlens": t.cache_lengths, "causal": s.causal}
        k, v = t.pages if s.page_size else (t.k, t.v)
        if s.page_size:
            require_built(self.module, "PAGEDKV")
            needed["page_table"] = t.table
        options = accepted(function, needed)

        def run():
            with torch.no_grad():
                return output_of(function(t.q, k, v, **options))
        return run


class Torch:
    """One backend of PyTorch's scaled_dot_product_attention."""

    def __init__(self, backend):
        self.backend = backend

    def forms(self, t):
        s = t.shape
        if s.page_size:
            raise Lacks("scaled_dot_product_attention reads no pages")
        if s.softcap:
            raise Lacks("scaled_dot_product_attention has no softcap")
        if s.window >= 0 or s.lengths:
            if self.backend == SDPBackend.FLASH_ATTENTION:
                return {"aten": self.aten(t)}
            if s.window >= 0:
                raise Lacks("scaled_dot_product_attention has no window")
            return {"nested": self.nested(t)}
        forms = {"sdpa": self.dense(t)}
        if s.direction != "backward" and s.heads_q != s.heads_k and not s.causal and s.group in ("short", "decode"):
            forms["rows"] = self.rows(t)
        if s.direction == "backward" and self.backend == SDPBackend.FLASH_ATTENTION and s.heads_q == s.heads_k:
            forms["aten"] = self.flash_backward(t)
        return forms

    def __call__(self, *tensors, **options):
        with sdpa_kernel(self.backend):
            return sdpa(*tensors, **options)

    def dense(self, t):
        s = t.shape
        options = {"is_causal": s.causal, **({"enable_gqa": True} if s.heads_q != s.heads_k else {})}
        return directed(t, lambda q, k, v: self(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
                                                **options).transpose(1, 2))

    def rows(self, t):
        """The query heads of a group as queries of one head: the same result without a mask, in the form that suits a
        kernel for many queries."""
        s, group = t.shape, t.shape.heads_q // t.shape.heads_k
        q = t.q.view(s.batch, s.len_q, s.heads_k, group, s.head_dim).permute(0, 2, 1, 3, 4)
        q = q.reshape(s.batch, s.heads_k, s.len_q * group, s.head_dim)
        k, v = t.k.transpose(1, 2), t.v.transpose(1, 2)

        def run():
            with torch.no_grad():
                return self(q, k, v)

        def in_shape(out):
            out = out.view(s.batch, s.heads_k, s.len_q, group, s.head_dim).permute(0, 2, 1, 3, 4)
            return out.reshape(t.q.shape)
        run.in_shape = in_shape  # outside of what is timed
        return run

    def nested(self, t):
        s = t.shape

        def attend(q, k, v):
            jagged = [torch.nested.nested_tensor_from_jagged(x, t.cu, min_seqlen=min(s.lengths), max_seqlen=s.len_q)
                      .transpose(1, 2) for x in (q, k, v)]
            return self(*jagged, is_causal=s.causal).transpose(1, 2).values()
        return directed(t, attend)

    def aten(self, t):
        """FlashAttention-2 by PyTorch's own operator, which takes windows and packed sequences."""
        s = t.shape
        options = {"window_size_left": s.window, "window_size_right": 0} if s.window >= 0 else {}
        operator = torch.ops.aten._flash_attention_forward
        return directed(t, lambda q, k, v: operator(q, k, v, t.cu, t.cu, s.len_q, s.len_k, 0.0, s.causal, False,
                                                    **options)[0])

    def flash_backward(self, t):
        """The backward operator without autograd around it."""
        q, k, v = t.by_heads()
        with torch.no_grad():
            out, lse, cum_q, cum_k, max_q, max_k, seed, offset = torch.ops.aten._scaled_dot_product_flash_attention(
                q, k, v, 0.0, t.shape.causal)[:8]
        operator, dout = torch.ops.aten._scaled_dot_product_flash_attention_backward, t.dout.transpose(1, 2)
        return lambda: tuple(g.transpose(1, 2) for g in operator(
            dout, q, k, v, out, lse, cum_q, cum_k, max_q, max_k, 0.0, t.shape.causal, seed, offset))


def reason_of(error, said):
    """One line: what the library said, or what PyTorch warned about before it refused."""
    first = (str(error).splitlines() or [type(error).__name__])[0].strip()
    if "No available kernel" in first:
        lines = [str(w.message).split(" (Triggered")[0].strip() for w in said]
        lines = [line for line in lines if line and "not used because" not in line and "runtime disabled" not in line]
        first = lines[0].splitlines()[0] if lines else first
    return (first or type(error).__name__)[:200]


def difference(ours, theirs):
    """Of the norm, the larger of all results. Nonfinite values differ without end."""
    pairs = list(zip(ours, theirs)) if isinstance(ours, tuple) else [(ours, theirs)]
    return max(((a.float() - b.float()).norm() / a.float().norm()).nan_to_num(float("inf")).item() for a, b in pairs)


def working_forms(library, tensors, expected=None, largest=0.03):
    """The forms of a library that run and agree with `expected`; and, where none does, why."""
    forms, reason = {}, "it has no form of this call"
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            offered = library.forms(tensors)
        except Exception as error:  # noqa: BLE001: a library of any version may fail in any way
            return {}, reason_of(error, said)
        for name, call in offered.items():
            try:
                result = call()
                if tensors.q.is_cuda:
                    torch.cuda.synchronize()
                result = getattr(call, "in_shape", lambda x: x)(result)
            except Exception as error:  # noqa: BLE001
                reason = reason_of(error, said)
                continue
            if expected is not None and not (off := difference(expected, result)) < largest:
                reason = f"its result differs from that of cuflash by {off:.3f} of the norm"
                continue
            forms[name] = call
    return forms, reason
