"""Wrong values for every argument of every public function raise a sentence that begins with the argument's name."""

import inspect
import re

import numpy as np
import pytest

import cuflash

VALUES = {
    "None": None, "a string": "abc", "bytes": b"x", "a list": [1, 2], "an empty list": [],
    "lists of two lengths": [[1, 2], [3]], "a set": {1}, "a dict": {}, "an object": object(), "one number in a tuple": (1,), "three in a tuple": (1, 2, 3),
    "strings in a tuple": ("a", "b"), "NaN in a tuple": (float("nan"), 0), "NumPy's int": np.int64(3),
    "NumPy's float": np.float32(0.5), "an array": np.ones(3), "an array without dimensions": np.zeros(()), "True": True,
    "-7": -7, "2.5": 2.5, "NaN": float("nan"), "infinity": float("inf"), "2**70": 2**70, "1j": 1j,
}
# Words of Python, nanobind, PyTorch's dispatcher and DLPack that address authors of the package, not its callers.
INTERNAL = re.compile(
    "incompatible function|unpack|DLPack|NoneType|has no attribute|not supported between|nanobind|nb_|must be real|"
    "Internal|cuflash::|not iterable|subscriptable|Expected a value|could not convert|invalid literal|truth value|"
    "out of range|positional|unsupported operand|cannot be interpreted|inhomogeneous|verflow|ambiguous|NULL|window_left|"
    "window_right|negative dimensions|0-d")


def refusal(function, arguments):
    """The message that the call raises; "" if it accepts the arguments."""
    try:
        function(**arguments)
    except (TypeError, ValueError, NotImplementedError) as error:
        return str(error).removeprefix("INVALID_ARGUMENT: ").partition("\n")[0]
    except RuntimeError as error:  # JAX's, for errors that show only when the compiled program runs
        if not str(error).startswith("INVALID_ARGUMENT: "):
            raise
        return str(error).removeprefix("INVALID_ARGUMENT: ").partition("\n")[0]
    return ""


def sweep(function, arguments, names):
    """Tries every wrong value for every parameter: an error begins with the parameter that is wrong.

    names: for a parameter, others that the message may name, because they are wrong only in combination with it."""
    faults = []
    parameters = inspect.signature(function).parameters
    for name in parameters:
        for kind, value in VALUES.items():
            message = refusal(function, {**arguments, name: value})
            if not message:
                continue
            subjects = re.split(r": | is (?:of|None)|\[| \(a part", message)[0].split(", ")
            told = re.search(rf"\b{name}\b", message) or set(subjects) & set(names.get(name, ()))
            if INTERNAL.search(message) or not told or not {*subjects} <= {*parameters, *names.get(name, ())}:
                faults.append(f"{name} = {kind}: {message}")
    assert not faults, "\n".join(faults)


Q = np.random.default_rng(0).standard_normal((2, 4, 6, 8), dtype=np.float32)
OUT, LSE = cuflash.attention(Q, Q, Q, return_lse=True)
ONE = Q[:, :, :1].copy()
# Given lengths of packed queries, q has one dimension too many; a table of sines needs one of cosines.
OF_CACHE = {"q": ("k_cache",), "cu_seqlens_q": ("q",), "cu_seqlens_new": ("k",), "rotary_sin": ("rotary_cos",)}
OF_MERGE = {"o_a": ("lse_a",)}
OF_JAX = {"cu_seqlens_q": ("q",), "cu_seqlens_k": ("q",)}


def backward(dout, q, k, v, out, lse, dlse=None):
    return cuflash.attention_backward(dout, q, k, v, out, lse, dlse=dlse)


def explain(q, k, v, backward=False, window=(-1, -1), scale=None, num_threads=0):
    return cuflash.explain(q, k, v, backward=backward, window=window, scale=scale, num_threads=num_threads)


NUMPY = {
    "attention": (cuflash.attention, dict(q=Q, k=Q, v=Q), {}),
    "attention with dropout": (cuflash.attention, dict(q=Q, k=Q, v=Q, dropout_p=0.3, dropout_seed=3), {}),
    "attention_backward": (backward, dict(dout=OUT, q=Q, k=Q, v=Q, out=OUT, lse=LSE), {}),
    "explain": (explain, dict(q=Q, k=Q, v=Q), {}),
    "attention_with_cache": (cuflash.attention_with_cache, dict(q=Q, k_cache=Q.copy(), v_cache=Q.copy()), OF_CACHE),
    "attention_with_cache, appending": (
        cuflash.attention_with_cache,
        dict(q=ONE, k_cache=Q.copy(), v_cache=Q.copy(), k=ONE, v=ONE, cache_seqlens=[2, 3]), OF_CACHE),
    "merge_states": (cuflash.merge_states, dict(o_a=OUT, lse_a=LSE, o_b=OUT, lse_b=LSE), OF_MERGE),
    "PagePool": (cuflash.PagePool, dict(pages=4, page_size=2, max_sequences=2), {}),
}


@pytest.mark.parametrize("case", NUMPY)
def test_of_numpy(case):
    sweep(*NUMPY[case])


@pytest.mark.parametrize("method", ["fork", "append", "truncate", "trim", "state", "pages", "block_table", "lengths"])
def test_of_page_pool(method):
    pool = cuflash.PagePool(pages=4, page_size=2, max_sequences=2000)
    sequence = pool.start()
    defaults = dict(parent=sequence, sequence=sequence, sequences=[sequence], tokens=0, sinks=0, window=0)
    function = getattr(pool, method)
    arguments = {name: defaults[name] for name in inspect.signature(function).parameters if name in defaults}
    sweep(function, arguments, {"out": ("block_table", "cache_seqlens"), "max_pages": ("block_table",)})


@pytest.mark.parametrize("packed", [False, True])
def test_of_jax(packed):
    pytest.importorskip("jax")
    import cuflash.jax

    arguments = dict(q=Q, k=Q, v=Q)
    if packed:
        rows, starts = Q[0].swapaxes(0, 1).copy(), np.array([0, 6], np.int32)
        arguments = dict(q=rows, k=rows, v=rows, layout="thd", cu_seqlens_q=starts, cu_seqlens_k=starts, max_seqlen_q=6,
                         max_seqlen_k=6)
    sweep(cuflash.jax.attention, arguments, OF_JAX)


def cases_of_torch():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from cuflash import flash_attn_interface as interface

    q, out, lse = (torch.from_numpy(x.copy()) for x in (Q, OUT, LSE))
    rows, one, starts = q[0], q[:, :1], torch.tensor([0, 4], dtype=torch.int32)
    lengths = dict(cu_seqlens_q=starts, cu_seqlens_k=starts, max_seqlen_q=4, max_seqlen_k=4)
    pages = dict(q=rows, k=q, v=q, block_table=torch.zeros(1, 1, dtype=torch.int32), **lengths)
    angles = torch.randn(8, 2)
    no_dropout = {"dropout_p": ("block_table",), "bias": ("block_table",), "mask": ("block_table",)}
    return {
        "attention": (cuflash.attention, dict(q=q, k=q, v=q), {}),
        "attention with dropout": (cuflash.attention, dict(q=q, k=q, v=q, dropout_p=0.3), {}),
        "attention_with_cache": (cuflash.attention_with_cache, dict(q=q, k_cache=q.clone(), v_cache=q.clone()),
                                 OF_CACHE),
        "merge_states": (cuflash.merge_states, dict(o_a=out, lse_a=lse, o_b=out, lse_b=lse), OF_MERGE),
        "dense": (interface.flash_attn_func, dict(q=q, k=q, v=q), {}),
        "probabilities": (interface.flash_attn_func, dict(q=q, k=q, v=q, dropout_p=0.2, return_attn_probs=True), {}),
        "kv": (interface.flash_attn_kvpacked_func, dict(q=q, kv=torch.stack([q, q], 2)), {}),
        "qkv": (interface.flash_attn_qkvpacked_func, dict(qkv=torch.stack([q, q, q], 2)), {}),
        "packed": (interface.flash_attn_varlen_func, dict(q=rows, k=rows, v=rows, **lengths), {"block_table": ("k",)}),
        "pages": (interface.flash_attn_varlen_func, pages,
                  {**no_dropout, "block_table": ("k",), "cu_seqlens_q": ("q",)}),
        "packed kv": (interface.flash_attn_varlen_kvpacked_func,
                      dict(q=rows, kv=torch.stack([rows, rows], 1), **lengths), {}),
        "packed qkv": (interface.flash_attn_varlen_qkvpacked_func,
                       dict(qkv=torch.stack([rows] * 3, 1), cu_seqlens=starts, max_seqlen=4), {}),
        "cache": (interface.flash_attn_with_kvcache, dict(q=q, k_cache=q.clone(), v_cache=q.clone()), OF_CACHE),
        "cache, appending": (interface.flash_attn_with_kvcache,
                             dict(q=one, k_cache=q.clone(), v_cache=q.clone(), k=one, v=one, cache_seqlens=1,
                                  rotary_cos=angles, rotary_sin=angles),
                             {**OF_CACHE, "k": ("rotary_cos",), "cache_leftpad": ("rotary_cos",)}),
    }


@pytest.mark.parametrize("case", ["attention", "attention with dropout", "attention_with_cache", "merge_states", "dense",
                                  "probabilities", "kv", "qkv", "packed", "pages", "packed kv", "packed qkv", "cache",
                                  "cache, appending"])
def test_of_torch(case):
    sweep(*cases_of_torch()[case])


@pytest.mark.parametrize("value", [3, (1, 2, 3), "12", None, (2.5, 0), (-2, 0)])
def test_a_window_is_a_pair(value):
    with pytest.raises((TypeError, ValueError)) as raised:
        cuflash.attention(Q, Q, Q, window=value)
    assert str(raised.value) == (f"window: got {value!r}, must be two whole numbers (left, right), each -1 (unbounded) or "
                                 "more, such as (3, 0)")


def test_names_and_order_of_flash_attn():
    """Messages use the caller's argument names, and shapes as [batch, length, heads, dim]."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    q = torch.zeros(2, 6, 4, 8)
    for call, words in (
        (lambda: cuflash.flash_attn_func(q, q, q, window_size=3), "window_size: got 3, must be two whole numbers"),
        (lambda: cuflash.flash_attn_func(q, q, q, softmax_scale=float("inf")), "softmax_scale: got inf"),
        (lambda: cuflash.flash_attn_func(q, q, torch.zeros(2, 5, 4, 8)),
         "v: dimension 1 of shape [2, 5, 4, 8] is 5, must be 6, the length of k"),
        (lambda: cuflash.flash_attn_func(q, q, torch.zeros(2, 6, 2, 8)),
         "v: dimension 2 of shape [2, 6, 2, 8] is 2, must be 4, the heads of k"),
        (lambda: cuflash.flash_attn_kvpacked_func(q, torch.zeros(2, 6, 2, 4, 5)),
         "k (a part of kv): dimension 3 of shape [2, 6, 4, 5] is 5, must be 8, the head size of q"),
        (lambda: cuflash.flash_attn_with_kvcache(q, q.clone(), torch.zeros(2, 5, 4, 8)),
         "v_cache: dimension 1 of shape [2, 5, 4, 8] is 5, must be 6"),
        (lambda: cuflash.flash_attn_with_kvcache(q, q.clone(), q.clone(), softmax_scale="x"), "softmax_scale: got 'x'"),
    ):
        with pytest.raises((TypeError, ValueError)) as raised:
            call()
        assert str(raised.value).startswith(words), raised.value


def test_types_have_the_names_of_their_library():
    """Through DLPack, and through the tensor methods that older versions of PyTorch need."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    for dtype in ("float8_e4m3fn", "float8_e5m2", "complex64", "int64", "uint8"):
        x = torch.zeros(1, 1, 2, 8).to(getattr(torch, dtype))
        with pytest.raises(ValueError, match=rf"^q: type (torch\.)?{dtype} (is not supported|must be)"):
            cuflash.attention(x, x, x)
