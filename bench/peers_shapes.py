"""Problems that bench/peers_cuda.py and bench/world.py give to every library."""

from typing import NamedTuple, Optional, Tuple

TOKENS, HIDDEN = 16384, 2048
# A ragged batch of 16384 tokens, from a short chat to a long document.
RAGGED = (4096, 2048, 2048, 1536, 1280, 1024, 1024, 768, 768, 512, 512, 256, 256, 128, 64, 64)
GROUPS = ("forward", "backward", "grouped", "short", "varlen", "window", "softcap", "decode")


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
    lengths: Tuple[int, ...] = ()  # of the sequences of a packed batch; len_q and len_k are the longest
    dtype: str = "bf16"
    head_dim_v: Optional[int] = None  # if values have another head size than keys
    alibi: bool = False
    bias: str = ""  # [1, H, Sq, Sk]: "fixed", or "learned" with a gradient
    mask: str = ""  # [B, 1, Sq, Sk]: "random", 70% of it visible, or "documents", as long as `document`
    document: int = 700
    sinks: bool = False
    dropout: float = 0.0
    deterministic: bool = False
    padded: bool = False  # every second sequence is half as long
    heads_first: bool = False  # memory order [B, H, S, D]
    shared_values: bool = False  # values are the first columns of the keys, as in latent attention

    @property
    def variant(self):
        """The properties of this problem that have no field in the results file; empty for most problems."""
        words = [f"window of {self.window + 1} keys" if self.window >= 0 else "",
                 f"softcap {self.softcap:g}" if self.softcap else "",
                 f"{len(self.lengths)} packed sequences" if self.lengths else "",
                 "ALiBi" if self.alibi else "", f"{self.bias} bias" if self.bias else "",
                 f"mask of {self.document} token documents" if self.mask == "documents" else "",
                 "random mask" if self.mask == "random" else "", "sinks" if self.sinks else "",
                 f"dropout {self.dropout:g}" if self.dropout else "", "deterministic" if self.deterministic else "",
                 "padded" if self.padded else "", "heads first" if self.heads_first else "",
                 "values are keys" if self.shared_values else ""]
        return ", ".join(word for word in words if word)

    @property
    def dim_v(self):
        return self.head_dim_v or self.head_dim

    @property
    def few_queries(self):
        """Whether there are so few queries that a library may use a decode kernel."""
        return self.direction != "backward" and 32 * self.len_q <= self.len_k

    @property
    def own_lengths(self):
        """The length of each sequence if they differ, in packed and padded batches; otherwise empty."""
        if self.padded:
            return tuple(self.len_q // (1 + n % 2) for n in range(self.batch))
        return self.lengths

    @property
    def plain(self):
        """The same problem without options and with a key head for each query head; None if it has no plain form."""
        none = {name: self._field_defaults[name] for name in (
            "window", "softcap", "alibi", "bias", "mask", "sinks", "dropout", "deterministic", "padded", "heads_first")}
        found = self._replace(heads_k=self.heads_q, **none)
        alone = self.lengths or self.few_queries or self.direction == "decode"
        return None if alone or found == self else found

    @property
    def pairs(self):
        """The number of visible pairs of a query and a key, for one head of all sequences. A random mask counts as
        fully visible: it hides too few pairs for any tile to be skipped."""
        total = 0.0
        for queries, keys in [(n, n) for n in self.own_lengths] or [(self.len_q, self.len_k)] * self.batch:
            if self.window >= 0:  # causal, as many queries as keys
                whole = min(self.window + 1, queries)
                total += whole * (whole + 1) / 2 + (queries - whole) * (self.window + 1)
            elif self.mask == "documents":  # causal inside each document
                whole, rest = divmod(queries, self.document)
                total += (whole * self.document**2 + rest**2) / 2
            elif self.causal:  # as the other benchmarks of this folder count: half of a square
                total += queries * keys - queries * queries / 2
            else:
                total += queries * keys
        return total

    @property
    def flops(self):
        dims = 3 * self.head_dim + 2 * self.dim_v if self.direction == "backward" else self.head_dim + self.dim_v
        return 2 * self.pairs * self.heads_q * dims

    @property
    def key_value_bytes(self):
        dims = self.head_dim + (0 if self.shared_values else self.dim_v)
        return 2 * self.batch * self.len_k * self.heads_k * dims

    def __str__(self):
        mask = ", causal" if self.causal else ""
        pages = f", pages of {self.page_size}" if self.page_size else ""
        extra = f", {self.variant}" if self.variant else ""
        values = f"/{self.dim_v}" if self.dim_v != self.head_dim else ""
        kind = f", {self.dtype}" if self.dtype != "bf16" else ""
        return (f"{self.direction} B={self.batch} H={self.heads_q}/{self.heads_k} S={self.len_q}x{self.len_k} "
                f"D={self.head_dim}{values}{mask}{pages}{extra}{kind}")


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
    """One shape of each kind, with few kernels to compile."""
    yield square("forward", "forward", 128, 2048, True)
    yield square("forward", "forward", 128, 8192, True)
    yield square("backward", "backward", 128, 4096, True)
    yield Shape("short", "forward", 1, 32, 8, 16, 8192, 128)
    yield Shape("varlen", "forward", len(RAGGED), 16, 16, max(RAGGED), max(RAGGED), 128, True, lengths=RAGGED)
    yield square("softcap", "forward", 128, 4096, True, softcap=50.0)
    yield from (Shape("decode", "decode", 16, 32, 8, 1, 8192, 128, page_size=size) for size in (0, 16))


def toy(shape):
    """The shape at a size that a CPU computes in milliseconds, for --dry-run. With one key, gradients of scores would be 0."""
    lengths = tuple(max(1, n // 64) for n in shape.lengths)
    small = shape._replace(
        batch=len(lengths) or min(shape.batch, 2), heads_q=4, heads_k=max(1, 4 * shape.heads_k // shape.heads_q),
        len_q=max(1, shape.len_q // 64), len_k=max(4, shape.len_k // 64), head_dim=shape.head_dim // 4,
        head_dim_v=shape.head_dim_v and shape.head_dim_v // 4, document=10,
        window=shape.window // 64 if shape.window >= 0 else -1, lengths=lengths)
    return small._replace(page_size=min(small.page_size, 16))


def toy_shapes():
    """A small shape of every group, for --dry-run."""
    return map(toy, all_shapes())
