"""cuflash.jax.attention under jit, grad and vmap, against float64 NumPy."""

import os
import re
import shutil
import subprocess

import numpy as np
import pytest

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # PyTorch's tests need the GPU's memory, too
jax = pytest.importorskip("jax", minversion="0.5", reason="jax 0.5 or newer is not installed")
import jax.numpy as jnp  # noqa: E402

import cuflash  # noqa: E402
import cuflash.jax  # noqa: E402
from cuflash import _reference  # noqa: E402

DTYPES = ["float64", "float32", "float16", "bfloat16"]
EPSILON = {"float64": 1e-13, "float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}


@pytest.fixture(autouse=True)
def place(device):
    """Arrays of these tests live on the device of the tests, and float64 is float64."""
    try:
        where = jax.devices("gpu" if device == "cuda" else "cpu")[0]
    except RuntimeError as error:
        pytest.skip(f"jax has no such device: {error}")
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    with jax.default_device(where):
        yield where
    jax.config.update("jax_enable_x64", before)


def problem(dtype="float32", batch=2, heads=4, heads_k=2, len_q=9, len_k=13, dim=8, dim_v=6, seed=0):
    """q, k, v, and random arrays for options."""
    draw = np.random.default_rng(seed).standard_normal
    shapes = (batch, heads, len_q, dim), (batch, heads_k, len_k, dim), (batch, heads_k, len_k, dim_v)
    return [jnp.asarray(draw(shape), dtype) for shape in shapes], draw


def options_named(name, draw, dtype):
    """Options for the problem above."""
    arrays = {
        "bias": lambda: jnp.asarray(draw((1, 4, 1, 13)), dtype),
        "whole bias": lambda: jnp.asarray(draw((2, 4, 9, 13)), dtype),
        "sink": lambda: jnp.asarray(draw(4), dtype),
        "mask": lambda: jnp.asarray(draw((2, 1, 9, 13)) < 0.7),
        "slopes": lambda: jnp.asarray(np.abs(draw(4)), "float32"),
        "lengths": lambda: jnp.asarray([5, 0], "int32"),
    }
    return {
        "plain": lambda: {},
        "causal": lambda: dict(causal=True, scale=0.3),
        "window, softcap": lambda: dict(window=(3, 1), softcap=1.5),
        "top left": lambda: dict(causal=True, top_left=True),
        "bias": lambda: dict(bias=arrays["bias"]()),
        "bias, mask, causal": lambda: dict(bias=arrays["whole bias"](), mask=arrays["mask"](), causal=True),
        "sink, slopes": lambda: dict(sink=arrays["sink"](), alibi_slopes=arrays["slopes"]()),
        "lengths": lambda: dict(seqlens_q=arrays["lengths"](), seqlens_k=arrays["lengths"](), causal=True),
        "dropout": lambda: dict(dropout_p=0.3, dropout_seed=2**63 + 5, dropout_offset=7),
    }[name]()


def as_numpy(x):
    return np.asarray(x, "float64") if jnp.issubdtype(x.dtype, jnp.floating) else np.asarray(x)


def numpy_options(options):
    return {name: as_numpy(value) if hasattr(value, "dtype") else value for name, value in options.items()}


def agree(got, expected, dtype, what=""):
    got = as_numpy(got)
    assert got.shape == expected.shape, what
    both = np.isfinite(expected)
    assert np.array_equal(np.isfinite(got), both), what
    error = np.abs(got[both] - expected[both]).max(initial=0)
    assert error <= 8 * EPSILON[dtype] * (1 + np.abs(expected[both]).max(initial=0)), (what, error)


def check(q, k, v, options, dtype, attend=cuflash.jax.attention):
    """out, lse and every gradient, through out and through lse, compiled."""
    arrays = {"q": q, "k": k, "v": v, **{name: x for name, x in options.items() if hasattr(x, "dtype")}}
    rest = {name: x for name, x in options.items() if name not in arrays}
    wanted = [name for name in ("q", "k", "v", "bias", "sink") if name in arrays]

    @jax.jit
    def run(arrays, dout, dlse):
        def of(differentiated):
            return attend(**{**arrays, **differentiated}, **rest, return_lse=True)
        outputs, pull = jax.vjp(of, {name: arrays[name] for name in wanted})
        return outputs, pull((dout, dlse))[0]
    expected = _reference.attention(*(as_numpy(x) for x in (q, k, v)), **numpy_options(options))
    draw = np.random.default_rng(1).standard_normal
    dout = jnp.asarray(draw(expected[0].shape), dtype)
    dlse = jnp.asarray(np.where(np.isfinite(expected[1]), draw(expected[1].shape), 0), "float64" if dtype == "float64" else "float32")
    (out, lse), gradients = run(arrays, dout, dlse)
    assert out.dtype == q.dtype and lse.dtype == dlse.dtype
    agree(out, expected[0], dtype, "out")
    agree(lse, expected[1], "float64" if dtype == "float64" else "float32", "lse")
    exact = _reference.attention_backward(as_numpy(dout), *(as_numpy(x) for x in (q, k, v)), dlse=as_numpy(dlse),
                                          **numpy_options(options))
    for name in wanted:
        agree(gradients[name], getattr(exact, "d" + name), dtype, "d" + name)


NAMES = ["plain", "causal", "window, softcap", "top left", "bias", "bias, mask, causal", "sink, slopes", "lengths", "dropout"]


@pytest.mark.parametrize("name", NAMES)
def test_options(name):
    (q, k, v), draw = problem("float64")
    check(q, k, v, options_named(name, draw, "float64"), "float64")


@pytest.mark.parametrize("dtype", DTYPES[1:])
@pytest.mark.parametrize("name", ["causal", "bias, mask, causal", "sink, slopes"])
def test_types(name, dtype):
    (q, k, v), draw = problem(dtype)
    check(q, k, v, options_named(name, draw, dtype), dtype)


@pytest.mark.parametrize("sizes", [dict(batch=0), dict(len_k=0), dict(len_q=0), dict(heads=3, heads_k=1, len_q=1, len_k=65),
                                   dict(batch=1, len_q=70, len_k=131, dim=33, dim_v=17)], ids=str)
def test_sizes(sizes):
    (q, k, v), _ = problem(**sizes)
    check(q, k, v, dict(causal=True), "float32")


def test_layouts():
    (q, k, v), draw = problem("float64")
    options = dict(causal=True, bias=jnp.asarray(draw((2, 4, 9, 13))))

    def attend_bshd(q, k, v, **rest):
        out, lse = cuflash.jax.attention(*(x.swapaxes(1, 2) for x in (q, k, v)), layout="bshd", **rest)
        return out.swapaxes(1, 2), lse
    check(q, k, v, options, "float64", attend_bshd)


def test_packed():
    """Two sequences behind each other, and rows behind the last."""
    (q, k, v), _ = problem("float64", batch=1, len_q=10, len_k=14)
    cu_q, cu_k = jnp.asarray([0, 4, 9], "int32"), jnp.asarray([0, 6, 13], "int32")

    def packed(q, k, v):
        return cuflash.jax.attention(*(x[0].swapaxes(0, 1) for x in (q, k, v)), layout="thd", cu_seqlens_q=cu_q,
                                     cu_seqlens_k=cu_k, max_seqlen_q=5, max_seqlen_k=7, causal=True, return_lse=True)
    out, lse = jax.jit(packed)(q, k, v)
    gradients = jax.grad(lambda *x: packed(*x)[0][:9].sum(), argnums=(0, 1, 2))(q, k, v)
    for rows, keys in ((slice(0, 4), slice(0, 6)), (slice(4, 9), slice(6, 13))):
        part = [as_numpy(q)[:, :, rows], as_numpy(k)[:, :, keys], as_numpy(v)[:, :, keys]]
        expected, expected_lse = _reference.attention(*part, causal=True)
        agree(out[rows].swapaxes(0, 1)[None], expected, "float64")
        agree(lse[:, rows][None], expected_lse, "float64")
        exact = _reference.attention_backward(np.ones_like(expected), *part, causal=True)
        for got, name, where in zip(gradients, ("dq", "dk", "dv"), (rows, keys, keys)):
            agree(got[:, :, where], getattr(exact, name), "float64", name)


VMAPS = [dict(q=0, k=0, v=0, sink=0, bias=0), dict(q=0), dict(sink=0), dict(k=1, v=3), dict(bias=2, q=0)]


@pytest.mark.parametrize("axes", VMAPS, ids=str)
def test_vmap(axes):
    """Values and gradients of each slice, whichever arrays have a slice of their own; the rest is shared."""
    (q, k, v), draw = problem("float64")
    arrays = {"q": q, "k": k, "v": v, "sink": jnp.asarray(draw(4)), "bias": jnp.asarray(draw((4, 9, 13)))}
    stacked = {name: jnp.stack([x, -x, x + 1], axes[name]) if name in axes else x for name, x in arrays.items()}

    def value_and_gradients(arrays):
        def loss(a):
            return (cuflash.jax.attention(**a, causal=True) ** 2).sum()
        return jax.value_and_grad(loss)(arrays)
    in_axes = ({name: axes.get(name) for name in arrays},)
    values, gradients = jax.jit(jax.vmap(value_and_gradients, in_axes))(stacked)
    for n in range(3):
        one = {name: jnp.take(x, n, axes[name]) if name in axes else x for name, x in stacked.items()}
        value, gradient = value_and_gradients(one)
        assert np.allclose(values[n], value)
        for name in arrays:
            agree(gradients[name][n], as_numpy(gradient[name]), "float64", name)


def test_nested_vmap_and_gradients_of_what_is_shared():
    (q, k, v), _ = problem("float64")
    many = jnp.stack([jnp.stack([q, -q, q + 1]), jnp.stack([2 * q, q - 1, q / 2])])

    def loss(many, k):
        out = jax.vmap(jax.vmap(lambda x: cuflash.jax.attention(x, k, v)))(many)
        return (out ** 2).sum()
    got = jax.jit(jax.grad(loss, argnums=(0, 1)))(many, k)
    one_by_one = [jax.grad(lambda x, k: (cuflash.jax.attention(x, k, v) ** 2).sum(), argnums=(0, 1))(x, k)
                  for x in many.reshape(6, *q.shape)]
    agree(got[0].reshape(6, *q.shape), np.stack([as_numpy(dq) for dq, _ in one_by_one]), "float64")
    agree(got[1], sum(as_numpy(dk) for _, dk in one_by_one), "float64")


def test_transformations_that_run_it_again():
    """Activation checkpointing, and a loop of the compiled program."""
    (q, k, v), _ = problem("float64", heads_k=4, dim_v=8, len_q=13)

    def layers(q, attend):
        return jax.lax.scan(lambda x, _: (attend(x, k, v), None), q, None, length=3)[0].sum()
    expected = jax.grad(layers)(q, lambda *x: cuflash.jax.attention(*x, causal=True))
    remat = jax.checkpoint(lambda *x: cuflash.jax.attention(*x, causal=True))
    agree(jax.jit(jax.grad(layers), static_argnums=1)(q, remat), as_numpy(expected), "float64")


def test_only_what_is_asked_for_is_computed():
    (q, k, v), _ = problem()

    def written(function, x):
        """What each call of the library in the program of this function writes."""
        return re.findall(r"'results', '([^']*)'", str(jax.make_jaxpr(function)(x)))
    assert written(lambda k: cuflash.jax.attention(q, k, v), k) == ["out"]
    assert written(lambda k: cuflash.jax.attention(q, k, v, return_lse=True), k) == ["out lse"]
    assert written(jax.grad(lambda k: cuflash.jax.attention(q, k, v).sum()), k) == ["out lse", "dk"]
    assert written(jax.grad(lambda s: cuflash.jax.attention(q, k, v, sink=s).sum()), jnp.ones(4, "float32")) == ["out lse", "dsink"]


def test_ranks_and_the_front_door():
    (q, k, v), _ = problem("float64", batch=1, heads=1, heads_k=1)
    expected, lse = _reference.attention(*(as_numpy(x) for x in (q, k, v)))
    for rank in (2, 3, 4):
        parts = [x.reshape(x.shape[4 - rank:]) for x in (q, k, v)]
        for attend in (cuflash.jax.attention, cuflash.attention):
            got, got_lse = attend(*parts, return_lse=True)
            assert isinstance(got, jax.Array)
            agree(got, expected.reshape(expected.shape[4 - rank:]), "float64")
            agree(got_lse, lse.reshape(lse.shape[4 - rank:]), "float64")


@pytest.mark.parametrize("change, message", [
    (dict(k=jnp.zeros((2, 3, 13, 8), "float32")), "heads"),
    (dict(k=jnp.zeros((2, 2, 13, 7), "float32")), "k: dimension 3"),
    (dict(v=jnp.zeros((2, 2, 13, 6), "float16")), "v: "),
    (dict(q=jnp.zeros((2, 4, 9, 8), "int32")), "q: "),
    (dict(window=(-2, 0)), "window_left"),
    (dict(softcap=-1.0), "softcap"),
    (dict(bias=jnp.zeros((5, 9, 13), "float32")), "bias"),
    (dict(mask=jnp.zeros(13, bool)), "mask: rank 1"),
    (dict(seqlens_k=jnp.zeros(3, "int32")), "seqlens_k"),
    (dict(layout="hsbd"), "layout"),
    (dict(layout="thd"), "cu_seqlens"),
    (dict(dropout_p=0.1), "dropout_seed"),
    (dict(dropout_p=1.5, dropout_seed=1), "dropout_p"),
], ids=str)
def test_wrong_arguments(change, message):
    """While it is traced: nothing has been compiled yet."""
    (q, k, v), _ = problem()
    arguments = {"q": q, "k": k, "v": v, **change}
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(lambda: cuflash.jax.attention(**arguments))


def test_wrong_lengths(device):
    """Values are known only when the program runs."""
    if device == "cuda":
        pytest.skip("lengths in device memory are not read by the host; kernels cut them")
    (q, k, v), _ = problem()
    with pytest.raises(RuntimeError, match="seqlens_k: entry 0 is 99"):
        jax.block_until_ready(cuflash.jax.attention(q, k, v, seqlens_k=jnp.asarray([99, 1], "int32")))


def test_derivatives_that_do_not_exist():
    (q, k, v), _ = problem("float64")
    with pytest.raises(ValueError, match="alibi_slopes"):
        jax.grad(lambda s: cuflash.jax.attention(q, k, v, alibi_slopes=s).sum())(jnp.ones(4, "float32"))
    with pytest.raises(Exception, match="(?i)differentiat"):
        jax.grad(lambda q: jax.grad(lambda q: cuflash.jax.attention(q, k, v).sum())(q).sum())(q)
    with pytest.raises(TypeError):
        jax.jvp(lambda q: cuflash.jax.attention(q, k, v), (q,), (q,))


STRUCTS = {
    "Extension": ("XLA_FFI_Extension_Base", "struct_size type next"),
    "Version": ("XLA_FFI_Api_Version", "struct_size extensions:extension_start major:major_version minor:minor_version"),
    "Metadata": ("XLA_FFI_Metadata", "struct_size version:api_version traits"),
    "MetadataExtension": ("XLA_FFI_Metadata_Extension", "base:extension_base metadata"),
    "CreateErrorArgs": ("XLA_FFI_Error_Create_Args", "struct_size message code:errc"),
    "DestroyErrorArgs": ("XLA_FFI_Error_Destroy_Args", "struct_size error"),
    "GetStreamArgs": ("XLA_FFI_Stream_Get_Args", "struct_size context:ctx stream"),
    "AllocateArgs": ("XLA_FFI_DeviceMemory_Allocate_Args", "struct_size context:ctx size alignment data"),
    "FreeArgs": ("XLA_FFI_DeviceMemory_Free_Args", "struct_size context:ctx size data"),
    "Api": ("XLA_FFI_Api", "struct_size version:api_version create_error:XLA_FFI_Error_Create "
            "destroy_error:XLA_FFI_Error_Destroy get_stream:XLA_FFI_Stream_Get allocate:XLA_FFI_DeviceMemory_Allocate "
            "free:XLA_FFI_DeviceMemory_Free"),
    "Buffer": ("XLA_FFI_Buffer", "struct_size dtype data rank dims"),
    "Text": ("XLA_FFI_ByteSpan", "data:ptr size:len"),
    "Scalar": ("XLA_FFI_Scalar", "dtype value"),
    "Attributes": ("XLA_FFI_Attrs", "struct_size size types names values:attrs"),
    "CallFrame": ("XLA_FFI_CallFrame", "struct_size extensions:extension_start api context:ctx stage arguments:args "
                  "results:rets attributes:attrs"),
}
CONSTANTS = {
    "kMajor": "XLA_FFI_API_MAJOR", "kMetadataExtension": "XLA_FFI_Extension_Metadata", "kBuffer": "XLA_FFI_ArgType_BUFFER",
    "kScalar": "XLA_FFI_AttrType_SCALAR", "kText": "XLA_FFI_AttrType_STRING", "kExecute": "XLA_FFI_ExecutionStage_EXECUTE",
    "DataType::boolean": "XLA_FFI_DataType_PRED", "DataType::s32": "XLA_FFI_DataType_S32",
    "DataType::s64": "XLA_FFI_DataType_S64", "DataType::f16": "XLA_FFI_DataType_F16",
    "DataType::f32": "XLA_FFI_DataType_F32", "DataType::f64": "XLA_FFI_DataType_F64",
    "DataType::bf16": "XLA_FFI_DataType_BF16", "ErrorCode::invalid_argument": "XLA_FFI_Error_Code_INVALID_ARGUMENT",
    "ErrorCode::internal": "XLA_FFI_Error_Code_INTERNAL", "ErrorCode::unimplemented": "XLA_FFI_Error_Code_UNIMPLEMENTED",
    "ErrorCode::resource_exhausted": "XLA_FFI_Error_Code_RESOURCE_EXHAUSTED",
}


def test_the_structs_are_those_of_xla(tmp_path):
    """Offsets, sizes of fields and constants of xla_ffi_api.h, held against the header that jax ships."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    ours = os.path.join(os.path.dirname(__file__), "../../python/src")
    if not compiler or not os.path.exists(os.path.join(jax.ffi.include_dir(), "xla/ffi/api/c_api.h")):
        pytest.skip("needs a C++ compiler and the headers that jax ships")
    lines = ["#include <cstddef>", '#include "xla_ffi_api.h"', "#include <xla/ffi/api/c_api.h>",
             "namespace xla = cuflash::python::xla;"]
    for mine, (theirs, fields) in STRUCTS.items():
        lines.append(f'static_assert(sizeof(xla::{mine}) <= sizeof({theirs}), "{mine}");')
        for field in fields.split():
            a, b = field.split(":") if ":" in field else (field, field)
            lines.append(f'static_assert(offsetof(xla::{mine}, {a}) == offsetof({theirs}, {b}), "{mine}.{a}");')
            lines.append(f'static_assert(sizeof(xla::{mine}::{a}) <= sizeof({theirs}::{b}), "{mine}.{a}");')
    for theirs, values in (("XLA_FFI_Args", "args"), ("XLA_FFI_Rets", "rets")):
        for a, b in (("struct_size", "struct_size"), ("size", "size"), ("types", "types"), ("values", values)):
            lines.append(f'static_assert(offsetof(xla::Buffers, {a}) == offsetof({theirs}, {b}), "Buffers.{a}");')
    for mine, theirs in CONSTANTS.items():
        lines.append(f'static_assert(static_cast<int>(xla::{mine}) == static_cast<int>({theirs}), "{mine}");')
    source = tmp_path / "structs.cpp"
    source.write_text("\n".join(lines) + "\n")
    done = subprocess.run([compiler, "-std=c++20", "-fsyntax-only", "-I", ours, "-isystem", jax.ffi.include_dir(), str(source)],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
