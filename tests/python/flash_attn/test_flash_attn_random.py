"""Random problems: every option crossed with every other, odd sizes, hostile strides."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("hypothesis", reason="Hypothesis is not installed")

from random_cases import examples  # noqa: E402
from flash_attn_cases import Case, check  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

LENGTH = st.one_of(st.integers(0, 40), st.sampled_from((1, 15, 16, 17, 63, 64, 65, 129)))
WINDOW = st.one_of(st.just(-1), st.integers(0, 20), st.integers(0, 200))
BROADCAST = st.sampled_from(("", "-", "b", "h", "q", "hq", "bq", "bhq"))
CASES = st.builds(
    Case,
    packing=st.sampled_from(("separate", "kv", "qkv")),
    batch=st.integers(0, 3),
    len_q=LENGTH,
    len_k=LENGTH,
    lengths=st.one_of(st.none(), st.lists(st.tuples(LENGTH, LENGTH), max_size=4).map(tuple)),
    heads_k=st.integers(1, 3),
    group=st.integers(1, 3),
    dim=st.one_of(st.integers(1, 80), st.sampled_from((32, 64, 128))),
    dim_v=st.one_of(st.integers(1, 80), st.sampled_from((32, 64, 128))),
    dtype=st.sampled_from((torch.float16, torch.bfloat16, torch.float32, torch.float64)),
    causal=st.booleans(),
    window=st.tuples(WINDOW, WINDOW),
    softcap=st.sampled_from((0.0, 1.0, 5.0, 30.0)),
    scale=st.sampled_from((None, 0.1, 0.5)),
    dropout_p=st.sampled_from((0.0, 0.0, 0.1, 0.5)),
    alibi=st.sampled_from(("", "heads", "batch and heads")),
    bias=BROADCAST,
    mask=BROADCAST,
    sink=st.booleans(),
    padded=st.booleans(),
    spread=st.sampled_from((1, 2, 3)),
    seed=st.integers(0, 2**31),
)


@settings(max_examples=examples(60))
@given(case=CASES)
def test_random_problem(case, device):
    check(case, device)
