"""Tests of what code written for flash_attn relies on: signatures, results, and clear errors."""

import inspect
import pathlib
import runpy
import sys

import pytest

numpy = pytest.importorskip("numpy", reason="NumPy is not installed")
torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import cuflash  # noqa: E402
import torch_reference  # noqa: E402

COMMON = [("dropout_p", 0.0), ("softmax_scale", None), ("causal", False), ("window_size", (-1, -1)), ("softcap", 0.0),
          ("alibi_slopes", None), ("deterministic", False), ("return_attn_probs", False)]
LENGTHS = ["cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"]
SIGNATURES = {
    "flash_attn_func": (["q", "k", "v"], COMMON),
    "flash_attn_kvpacked_func": (["q", "kv"], COMMON),
    "flash_attn_qkvpacked_func": (["qkv"], COMMON),
    "flash_attn_varlen_func": (["q", "k", "v", *LENGTHS], [*COMMON, ("block_table", None)]),
    "flash_attn_varlen_kvpacked_func": (["q", "kv", *LENGTHS], COMMON),
    "flash_attn_varlen_qkvpacked_func": (["qkv", "cu_seqlens", "max_seqlen"], COMMON),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature_is_that_of_flash_attn(name):
    parameters = inspect.signature(getattr(cuflash, name)).parameters.values()
    required, optional = SIGNATURES[name]
    positional = [parameter for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    assert [parameter.name for parameter in positional if parameter.default is parameter.empty] == required
    assert [(parameter.name, parameter.default) for parameter in positional[len(required):]] == optional
    own = [parameter for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    assert len(own) + len(positional) == len(parameters) and all(parameter.default is None for parameter in own)


def test_a_script_written_for_flash_attn_runs_unchanged(device):
    script = pathlib.Path(__file__).parents[1] / "helpers" / "flash_attn_script.py"
    sys.modules["flash_attn"] = cuflash  # the same that `import cuflash as flash_attn` does for the script's own import
    try:
        runpy.run_path(str(script), init_globals=None, run_name="__main__")
    finally:
        del sys.modules["flash_attn"]


def tensors(device, dtype=torch.float32, batch=2, len_q=6, len_k=9, heads=2, size=8):
    generator = torch.Generator().manual_seed(4)
    return [torch.randn(batch, length, heads, size, generator=generator).to(device, dtype)
            for length in (len_q, len_k, len_k)]


def test_results(device):
    q, k, v = tensors(device)
    out = cuflash.flash_attn_func(q, k, v)
    assert isinstance(out, torch.Tensor) and out.shape == q.shape and out.is_contiguous()
    again, lse, s_dmask = cuflash.flash_attn_func(q, k, v, return_attn_probs=True)
    assert torch.equal(again, out) and lse.shape == (2, 2, 6) and s_dmask.shape == (0,)
    cu_seqlens = torch.tensor([0, 4, 6], dtype=torch.int32, device=device)
    _, lse, _ = cuflash.flash_attn_varlen_func(q[0], q[0], q[0], cu_seqlens, cu_seqlens, 4, 4, return_attn_probs=True)
    assert lse.shape == (2, 6)


@pytest.mark.parametrize("dtype", (torch.float64, torch.float32, torch.bfloat16), ids=str)
def test_matrix_of_dropout(dtype, device):
    """S_dmask holds the probabilities, negative where dropped. out can be computed from it."""
    q, k, v = tensors(device, dtype, len_q=21, len_k=37)
    torch.manual_seed(8)
    out, lse, s_dmask = cuflash.flash_attn_func(q, k, v, 0.4, causal=True, return_attn_probs=True)
    assert s_dmask.shape == (2, 2, 21, 37)
    by_hand = torch.einsum("bhqk,bkhd->bqhd", s_dmask.double().clamp(min=0) / 0.6, v.double())
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2}[dtype]
    torch.testing.assert_close(by_hand, out.double(), atol=tolerance, rtol=0)
    expected, expected_lse = torch_reference.attention(q, k, v, dtype=torch.float64, causal=True)
    undropped = torch.einsum("bhqk,bkhd->bqhd", s_dmask.double().abs(), v.double())
    torch.testing.assert_close(undropped, expected, atol=tolerance, rtol=0)
    dropped = (s_dmask < 0).sum().item() / (s_dmask != 0).sum().item()
    assert 0.3 < dropped < 0.5
    torch.manual_seed(8)
    assert torch.equal(cuflash.flash_attn_func(q, k, v, 0.4, causal=True), out), "asking for it changes the result"


def test_numbers_of_other_kinds(device):
    """Scripts pass NumPy's numbers, integers for floats and booleans, and zero-dimensional tensors."""
    q, k, v = tensors(device)
    cu_q, cu_k = (torch.tensor([0, length], dtype=torch.int32, device=device) for length in (6, 9))
    expected = cuflash.flash_attn_func(q[:1], k[:1], v[:1], 0.0, 1.0, True, (3, -1))
    for true, one, three in ((1, 1, 3), (numpy.bool_(True), numpy.float32(1), numpy.int64(3))):
        assert torch.equal(cuflash.flash_attn_func(q[:1], k[:1], v[:1], 0, one, true, [three, -1]), expected)
    lengths = (cu_q, cu_k, torch.tensor(6), numpy.int32(9))
    packed = cuflash.flash_attn_varlen_func(q[0], k[0], v[0], *lengths, 0, torch.tensor(1.0), 1, (3, -1))
    torch.testing.assert_close(packed, expected[0])


def test_matrix_of_dropout_of_packed_sequences(device):
    lengths_q, lengths_k = [5, 0, 11], [7, 3, 20]
    cu_q, cu_k = (torch.tensor([0, *lengths]).cumsum(0).to(device, torch.int32) for lengths in (lengths_q, lengths_k))
    q, k, v = (torch.randn(sum(lengths), 2, 8, device=device, dtype=torch.float64)
               for lengths in (lengths_q, lengths_k, lengths_k))
    out, _, s_dmask = cuflash.flash_attn_varlen_func(q, k, v, cu_q, cu_k, 11, 20, 0.3, return_attn_probs=True)
    assert s_dmask.shape == (3, 2, 11, 20)
    for b, (len_q, len_k) in enumerate(zip(lengths_q, lengths_k)):
        p = s_dmask[b, :, :len_q, :len_k].clamp(min=0) / 0.7
        by_hand = torch.einsum("hqk,khd->qhd", p, v[cu_k[b]:cu_k[b + 1]])
        torch.testing.assert_close(by_hand, out[cu_q[b]:cu_q[b + 1]], atol=1e-12, rtol=0)
        assert s_dmask[b, :, len_q:].eq(0).all() and s_dmask[b, :, :, len_k:].eq(0).all()


def test_packed_queries_read_pages(device):
    q, k, v = tensors(device, len_q=6, len_k=9)
    cu_q, cu_k = (torch.tensor([0, a, b], dtype=torch.int32, device=device) for a, b in ((2, 6), (5, 14)))
    table = torch.tensor([[3, 0, 1], [2, 4, 5]], dtype=torch.int32, device=device)
    pages = [torch.full((6, 3, 2, 8), torch.nan, device=device) for _ in range(2)]
    packed = [torch.cat([x[0, :5], x[1]]) for x in (k, v)]
    for page, rows in zip(pages, packed):
        for b, (begin, end) in enumerate(((0, 5), (5, 14))):
            for row in range(end - begin):
                page[table[b, row // 3], row % 3] = rows[begin + row]
    options = dict(causal=True, window_size=(3, -1), softcap=-1.0, alibi_slopes=torch.rand(2, device=device),
                   sink=torch.rand(2, device=device))
    expected = cuflash.flash_attn_varlen_func(q[0], *packed, cu_q, cu_k, 4, 9, return_attn_probs=True, **options)
    actual = cuflash.flash_attn_varlen_func(q[0], *pages, cu_q, cu_k, 4, 9, block_table=table, return_attn_probs=True,
                                            **options)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)
    assert torch.equal(actual[0], cuflash.flash_attn_varlen_func(q[0], *pages, cu_q, cu_k, 4, 9, block_table=table,
                                                                 **options))


REFUSED = {
    "type of k": (ValueError, r"\bk\b", lambda q, k, v: cuflash.flash_attn_func(q, k.half(), v)),
    "type of all": (ValueError, r"\bq\b.*i32", lambda q, k, v: cuflash.flash_attn_func(q.int(), k.int(), v.int())),
    "heads": (ValueError, "multiple", lambda q, k, v: cuflash.flash_attn_func(q[:, :, :1], k, v)),
    "rank": (ValueError, r"\bq\b", lambda q, k, v: cuflash.flash_attn_func(q[0], k, v)),
    "head size": (ValueError, r"\bk\b", lambda q, k, v: cuflash.flash_attn_func(q, k[..., :4], v)),
    "batch": (ValueError, r"\bk\b", lambda q, k, v: cuflash.flash_attn_func(q, k[:1], v)),
    "qkv": (ValueError, r"qkv.*\[\.\.\., 3, H, D\]", lambda q, k, v: cuflash.flash_attn_qkvpacked_func(q)),
    "kv": (ValueError, r"kv.*\[\.\.\., 2, H, D\]",
           lambda q, k, v: cuflash.flash_attn_kvpacked_func(q, torch.stack([k, k, v], 2))),
    "dropout": (ValueError, "dropout_p", lambda q, k, v: cuflash.flash_attn_func(q, k, v, 1.0)),
    "window": (ValueError, "window", lambda q, k, v: cuflash.flash_attn_func(q, k, v, window_size=(-2, 0))),
    "slopes": (ValueError, "alibi_slopes",
               lambda q, k, v: cuflash.flash_attn_func(q, k, v, alibi_slopes=q[0, 0, :, 0].double())),
    "bias": (ValueError, "bias", lambda q, k, v: cuflash.flash_attn_func(q, k, v, bias=q.new_zeros(3, 3))),
    "seed": (ValueError, "dropout_seed", lambda q, k, v: cuflash.flash_attn_func(q, k, v, 0.1, dropout_seed=-1)),
    "lengths in i64": (ValueError, "cu_seqlens_q", lambda q, k, v: cuflash.flash_attn_varlen_func(
        q[0], k[0], v[0], torch.tensor([0, 6], device=q.device), torch.tensor([0, 9], device=q.device), 6, 9)),
    "pages": (NotImplementedError, "block_table", lambda q, k, v: cuflash.flash_attn_varlen_func(
        q[0], k[0], v[0], None, None, 6, 9, 0.1, block_table=torch.zeros(1, 1, dtype=torch.int32))),
    "other device": (ValueError, r"\bv\b", lambda q, k, v: cuflash.flash_attn_func(q, k, v.to("meta"))),
    "no tensor q": (TypeError, "q is of type ndarray", lambda q, k, v: cuflash.flash_attn_func(q.cpu().numpy(), k, v)),
    "no seed": (TypeError, "dropout_seed", lambda q, k, v: cuflash.flash_attn_func(q, k, v, 0.1, dropout_seed="3")),
    "no tensor": (TypeError, "v is of type list", lambda q, k, v: cuflash.flash_attn_func(q, k, [1.0])),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_a_sentence(case, device):
    error, sentence, call = REFUSED[case]
    with pytest.raises(error, match=sentence):
        call(*tensors(device))


def test_refused_on_every_path(device):
    """If a fake kernel accepted what the library refuses, a compiler would continue with it."""
    q, k, v = tensors(device)
    compiled = torch.compile(lambda q, k, v: cuflash.flash_attn_func(q, k, v), backend="aot_eager")
    with pytest.raises(Exception, match=r"\bk\b"):
        compiled(q, k[..., :4].contiguous(), v)


def test_wrong_lengths_in_host_memory():
    q, k, v = tensors("cpu")
    with pytest.raises(ValueError, match="cu_seqlens_k"):
        cuflash.flash_attn_varlen_func(q[0], k[0], v[0], torch.tensor([0, 6], dtype=torch.int32),
                                       torch.tensor([0, 10], dtype=torch.int32), 6, 10)
