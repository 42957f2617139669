"""The six functions, crossed with their options, against float64."""

import dataclasses

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from flash_attn_cases import Case, check  # noqa: E402

PACKINGS = ("separate", "kv", "qkv")
LENGTHS = ((17, 40), (0, 5), (33, 33), (6, 0), (1, 9))
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
OPTIONS = {
    "plain": {},
    "scale": dict(scale=0.3),
    "causal": dict(causal=True),
    "window": dict(window=(7, 3)),
    "causal window": dict(causal=True, window=(5, -1)),
    "wide window": dict(window=(100, 0)),
    "softcap": dict(softcap=2.5),
    "softcap off": dict(softcap=-1.0),
    "alibi": dict(alibi="heads", causal=True),
    "alibi of batch": dict(alibi="batch and heads"),
    "dropout": dict(dropout_p=0.2),
    "all of flash_attn": dict(causal=True, window=(9, 9), softcap=3.0, alibi="heads", dropout_p=0.1, scale=0.5),
    "bias": dict(bias="bhq"),
    "bias of head": dict(bias="hq", causal=True),
    "bias of key": dict(bias="-"),
    "mask": dict(mask="bq"),
    "sink": dict(sink=True, causal=True),
    "all": dict(causal=True, softcap=4.0, alibi="heads", dropout_p=0.3, bias="h", mask="b", sink=True),
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("packed", (False, True), ids=("dense", "varlen"))
@pytest.mark.parametrize("packing", PACKINGS)
def test_option(packing, packed, options, device):
    check(Case(packing, lengths=LENGTHS if packed else None, **OPTIONS[options]), device)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("packed", (False, True), ids=("dense", "varlen"))
@pytest.mark.parametrize("packing", PACKINGS)
def test_type(packing, packed, dtype, device):
    case = Case(packing, lengths=LENGTHS if packed else None, dtype=dtype, causal=True, bias="hq", sink=True)
    check(dataclasses.replace(case, dim=64, dim_v=64, len_q=70, len_k=70), device, slope=True)


@pytest.mark.parametrize("dim, dim_v", ((1, 1), (8, 8), (40, 40), (64, 32), (72, 128), (128, 128)))
def test_head_size(dim, dim_v, device):
    check(Case(dim=dim, dim_v=dim_v, dtype=torch.float16), device)
    check(Case(dim=dim, dim_v=dim_v, causal=True, group=3), device)


@pytest.mark.parametrize("group", (1, 2, 5))
@pytest.mark.parametrize("packing", ("separate", "kv"))
def test_shared_heads(packing, group, device):
    check(Case(packing, group=group, heads_k=3, dtype=torch.bfloat16, causal=True), device)
    check(Case(packing, group=group, lengths=LENGTHS, sink=True), device)


@pytest.mark.parametrize("packing", PACKINGS)
def test_lengths_of_padded_batches(packing, device):
    check(Case(packing, padded=True, batch=5, causal=True, sink=True), device)


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("packed", (False, True), ids=("dense", "varlen"))
def test_views_of_larger_memory(packing, packed, device):
    check(Case(packing, lengths=LENGTHS if packed else None, spread=3, causal=True, bias="hq"), device)


@pytest.mark.parametrize("shape", (dict(batch=0), dict(len_q=0), dict(len_k=0), dict(len_q=0, len_k=0),
                                   dict(len_q=50, len_k=20, causal=True), dict(len_q=1, causal=True)), ids=str)
def test_small_and_empty(shape, device):
    check(Case(**shape), device)


@pytest.mark.parametrize("lengths", ((), ((0, 0),), ((5, 0), (0, 5)), ((60, 10), (10, 60))), ids=str)
def test_empty_sequences(lengths, device):
    check(Case(lengths=lengths, causal=True), device)
    check(Case("qkv", lengths=lengths), device)
