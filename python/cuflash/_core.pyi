"""The library's calls, without conveniences: the caller passes every argument and allocates every output.

Arrays are anything with DLPack or the buffer protocol (NumPy, PyTorch, JAX, CuPy), or None if absent. They are never
copied: the last dimension must be contiguous, other strides are arbitrary. All arrays of a call are on one device.
The optional arrays and the options are those of cuflash/_options.py, in its order.

    layout    q, out, dout, dq   k, dk            v, dv             lse, dlse
    "bhsd"    [B, Hq, Sq, D]     [B, Hk, Sk, D]   [B, Hk, Sk, Dv]   [B, Hq, Sq]
    "bshd"    [B, Sq, Hq, D]     [B, Sk, Hk, D]   [B, Sk, Hk, Dv]   [B, Hq, Sq]
    "thd"     [Tq, Hq, D]        [Tk, Hk, D]      [Tk, Hk, Dv]      [Hq, Tq]      with cu_seqlens_q and cu_seqlens_k

If v is None, k is kv [..., 2, Hk, D]; if k is None too, q is qkv [..., 3, H, D]. These have one more dimension, third
from the end, and so have their gradients: dk is then that of kv, and dq that of qkv.

out and dout have the head size of v. lse is float32 (float64 for float64). Other arrays:

    alibi_slopes   [Hq] or [B, Hq], float32
    bias, mask     [B or 1, Hq or 1, Sq or 1, Sk]; type of q or float32, and bool: False hides the key
    sink           [Hq], type of q or float32
    cu_seqlens_*   [B + 1], int32
    seqlens_*      [B], int32; "bhsd" and "bshd" only

Errors: ValueError (an argument), TypeError (not an array), MemoryError, RuntimeError (no device, not supported).
"""

from typing import Any, Callable, Optional, Tuple

Array = Any

def forward(
    q: Array,
    k: Optional[Array],
    v: Optional[Array],
    out: Array,
    lse: Optional[Array],
    alibi_slopes: Optional[Array],
    bias: Optional[Array],
    mask: Optional[Array],
    sink: Optional[Array],
    cu_seqlens_q: Optional[Array],
    cu_seqlens_k: Optional[Array],
    seqlens_q: Optional[Array],
    seqlens_k: Optional[Array],
    layout: str,
    scale: Optional[float],
    causal: bool,
    top_left: bool,
    window_left: int,
    window_right: int,
    softcap: float,
    dropout_p: float,
    dropout_seed: int,
    dropout_offset: int,
    max_seqlen_q: int,
    max_seqlen_k: int,
    stream: int,
    allocate: Optional[Callable[[int], Array]],
    num_threads: int = 0,
    check_lengths: bool = False,
    deterministic: bool = False,
) -> None:
    """Writes out, and lse if given.

    scale None is 1/sqrt(D). top_left aligns the first query with the first key; otherwise the last query is aligned
    with the last key. A window side of -1 is unbounded. stream is a CUstream as an integer. allocate(bytes) returns an
    array of uint8 on the device; it is called on CUDA if scratch is needed. None takes it from the device's
    stream-ordered pool.
    """

def backward(
    q: Array,
    k: Optional[Array],
    v: Optional[Array],
    out: Array,
    lse: Array,
    dout: Array,
    dlse: Optional[Array],
    dq: Optional[Array],
    dk: Optional[Array],
    dv: Optional[Array],
    dbias: Optional[Array],
    dsink: Optional[Array],
    alibi_slopes: Optional[Array],
    bias: Optional[Array],
    mask: Optional[Array],
    sink: Optional[Array],
    cu_seqlens_q: Optional[Array],
    cu_seqlens_k: Optional[Array],
    seqlens_q: Optional[Array],
    seqlens_k: Optional[Array],
    layout: str,
    scale: Optional[float],
    causal: bool,
    top_left: bool,
    window_left: int,
    window_right: int,
    softcap: float,
    dropout_p: float,
    dropout_seed: int,
    dropout_offset: int,
    max_seqlen_q: int,
    max_seqlen_k: int,
    stream: int,
    allocate: Optional[Callable[[int], Array]],
    num_threads: int = 0,
    check_lengths: bool = False,
    deterministic: bool = False,
) -> None:
    """Writes the given gradients; one that is None is not computed. out and lse are those of forward."""

def explain_forward(*args: Any, **kwargs: Any) -> str:
    """Arguments of forward. Which backend and kernel that call would get, and why. Computes nothing."""

def explain_backward(*args: Any, **kwargs: Any) -> str:
    """Arguments of backward. Which backend and kernel that call would get, and why. Computes nothing."""

def attend_cache(
    q: Array,
    k_cache: Array,
    v_cache: Array,
    k: Optional[Array],
    v: Optional[Array],
    out: Array,
    lse: Optional[Array],
    cache_seqlens: Array,
    block_table: Optional[Array],
    cache_batch_idx: Optional[Array],
    cache_leftpad: Optional[Array],
    cu_seqlens_new: Optional[Array],
    seqlens_new: Optional[Array],
    rotary_cos: Optional[Array],
    rotary_sin: Optional[Array],
    alibi_slopes: Optional[Array],
    sink: Optional[Array],
    cu_seqlens_q: Optional[Array],
    seqlens_q: Optional[Array],
    layout: str,
    scale: Optional[float],
    causal: bool,
    window_left: int,
    window_right: int,
    softcap: float,
    max_seqlen_q: int,
    max_seqlen_new: int,
    rotary_interleaved: bool,
    rotary_one_position: bool,
    num_splits: int,
    stream: int,
    allocate: Optional[Callable[[int], Array]],
    num_threads: int = 0,
    check_lengths: bool = False,
) -> None:
    """Appends k and v, if given, to k_cache and v_cache, then writes out, and lse if given.

    Arrays of four dimensions follow the layout; q and out, and k and v, may be packed [T, H, D]. Without k the caches
    may be read-only. cuflash.attention_with_cache documents all of them.
    """

def explain_attend_cache(*args: Any, **kwargs: Any) -> str:
    """Arguments of attend_cache. Which backend and kernel that call would get, and why. Computes nothing."""

def merge_states(
    o_a: Array,
    lse_a: Array,
    o_b: Array,
    lse_b: Array,
    out: Array,
    lse: Optional[Array],
    layout: str,
    stream: int,
    num_threads: int = 0,
) -> None:
    """Writes the merged result of both parts to out and lse; out may be o_a or o_b, and lse lse_a or lse_b."""

def summarize_mask(mask: Array, words: Array, stream: int, num_threads: int = 0) -> None:
    """Fills words, an int32 array of the shape summary_shape, with the summary of a mask; see cuflash.summarize_mask.

    forward and backward take it in place of the mask."""

def summary_shape(batch: int, heads: int, rows: int, keys: int) -> Tuple[int, int, int, int]: ...
def version() -> str: ...
def info() -> str:
    """Describes this build and what it finds on this machine, as `cuflash info` prints it."""

def xla_handlers() -> dict[str, dict[str, Any]]:
    """Arguments for jax.ffi.register_ffi_target: {platform: {name: PyCapsule}}."""

def xla_check(
    direction: str, layout: str, operands: list[tuple[str, str, tuple[int, ...]]], options: dict[str, float]
) -> None:
    """Raises what a call with such operands (name, dtype, shape) would raise. Lengths are taken as zeros."""

class Torch:
    """Calls on PyTorch tensors that allocate their results, for cuflash/_torch/call.py, which documents them."""

    def __init__(
        self,
        tensor: type,
        parameter: type,
        f16: Any,
        bf16: Any,
        f32: Any,
        f64: Any,
        u8: Any,
        empty_cpu: Optional[Callable[..., Array]],
        empty_cuda: Optional[Callable[..., Array]],
        current_device: Callable[[], int],
        current_stream: Callable[[int], int],
        num_threads: Callable[[], int],
        new_like: Callable[[Array], Array],
        clear_unused_rows: Callable[..., None],
        deterministic: Callable[[], bool],
        records_graphs: Callable[[], bool],
        inactive: tuple[Callable[[], Any], ...],
        forward_mode: Any,
    ) -> None: ...
    def forward(
        self,
        q: Array,
        k: Optional[Array],
        v: Optional[Array],
        extras: Optional[tuple[Optional[Array], ...]],
        options: tuple[Any, ...],
        execution: tuple[int, bool],
        want_lse: bool,
    ) -> tuple[Array, Optional[Array]]: ...
    def backward(
        self,
        q: Array,
        k: Optional[Array],
        v: Optional[Array],
        extras: Optional[tuple[Optional[Array], ...]],
        options: tuple[Any, ...],
        execution: tuple[int, bool],
        out: Array,
        lse: Array,
        dout: Array,
        dlse: Optional[Array],
        wanted: tuple[bool, bool, bool, bool, bool],
    ) -> tuple[Optional[Array], ...]: ...
    def backward_of_node(
        self, node: Any, dout: Optional[Array], dlse: Optional[Array]
    ) -> Optional[tuple[Optional[Array], ...]]:
        """The gradients of a node that autograd.py recorded; None: call.backward has to compute them."""

    def plain_call(
        self,
        q: Any,
        k: Any,
        v: Any,
        layout: Any,
        scale: Any,
        causal: Any,
        top_left: Any,
        window: Any,
        softcap: Any,
        dropout_p: Any,
        max_seqlen_q: Any,
        max_seqlen_k: Any,
        deterministic: Any,
        num_threads: Any,
        return_lse: Any,
        apply: Callable[..., Any],
    ) -> Any:
        """out, or out and lse, of a plain eager call; None: _torch.run has to look closer."""

class PagePool:
    """The library's page pool; cuflash.PagePool names the results. A sequence is (serial, slot)."""

    def __init__(self, pages: int, page_size: int, max_sequences: int, max_pages_per_sequence: int) -> None: ...
    def start(self) -> Optional[tuple[int, int]]: ...
    def fork(self, parent: tuple[int, int], tokens: int) -> Optional[tuple[int, int]]: ...
    def append(
        self, sequence: tuple[int, int], tokens: int
    ) -> tuple[str, int, int, Optional[tuple[int, int, int]]]: ...
    def truncate(self, sequence: tuple[int, int], tokens: int) -> None: ...
    def trim(self, sequence: tuple[int, int], sinks: int, window: int) -> tuple[int, int, int]: ...
    def release(self, sequence: tuple[int, int]) -> None: ...
    def state(self, sequence: tuple[int, int]) -> tuple[int, int, int, int, int]: ...
    def statistics(self) -> tuple[int, int, int, int, int, int, int, int]: ...
    def write_block_table(self, sequences: list[tuple[int, int]], block_table: Array, unused: int) -> None: ...
    def write_lengths(self, sequences: list[tuple[int, int]], cache_seqlens: Array) -> None: ...
    def check(self) -> None: ...
