"""bench/peers_cuda.py without a GPU: shapes, peers that lack something, its file, and the tables made of that."""

import json
import sys
import types
from pathlib import Path

import pytest

from cuflash.plot import results

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tools")]
import benchmark_data  # noqa: E402
import benchmark_tables  # noqa: E402
import peers_calls as calls  # noqa: E402
import peers_cuda as peers  # noqa: E402


def attend(q, k, v, causal=False, window_size=(-1, -1), softcap=0.0):
    """[B, S, H, D], in the terms of flash_attn: masks end at the last key."""
    group = q.shape[2] // k.shape[2]
    k, v = (t.repeat_interleave(group, 2).transpose(1, 2) for t in (k, v))
    scores = q.transpose(1, 2) @ k.transpose(2, 3) / q.shape[-1]**0.5
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    offset = torch.arange(k.shape[2]) - torch.arange(q.shape[1])[:, None] - (k.shape[2] - q.shape[1])
    hidden = (offset > 0) & (causal or window_size[1] == 0)
    if window_size[0] >= 0:
        hidden |= offset < -window_size[0]
    return (scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v).transpose(1, 2)


def varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal=False):
    ends = cu_seqlens_q.tolist()
    return torch.cat([attend(*(t[None, a:b] for t in (q, k, v)), causal)[0] for a, b in zip(ends, ends[1:])])


def with_cache(q, k_cache, v_cache, cache_seqlens=None, page_table=None, causal=False):
    if page_table is not None:
        k_cache, v_cache = (t[page_table.long()].flatten(1, 2) for t in (k_cache, v_cache))
    return attend(q, k_cache, v_cache, causal)


def fake_fa3(**functions):
    """A module with the signatures of FlashAttention-3; newer ones return the output alone."""
    def flash_attn_func(q, k, v, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, num_splits=1):
        return attend(q, k, v, causal, window_size, softcap), None
    return types.SimpleNamespace(**{"flash_attn_func": flash_attn_func, "flash_attn_varlen_func": varlen,
                                    "flash_attn_with_kvcache": with_cache, **functions})


class Ours(calls.FlashAttention):
    """Stands in for the library, which these tests do not need."""

    def __init__(self):
        super().__init__(fake_fa3())


def toy(group):
    found = [shape for shape in calls.toy_shapes() if shape.group == group]
    return list(dict.fromkeys(found))


def working(library, shape, expected=None):
    tensors = calls.Tensors(shape, "cpu", torch.float32)
    torch.manual_seed(3)
    return tensors, *calls.working_forms(library, tensors, expected)


def test_shapes():
    shapes = list(calls.all_shapes())
    assert {shape.group for shape in shapes} == set(calls.GROUPS) and len(shapes) == len(set(shapes))
    assert {shape.group for shape in calls.toy_shapes()} == set(calls.GROUPS)
    assert sum(calls.RAGGED) == calls.TOKENS
    assert all(shape.batch * shape.len_q == calls.TOKENS for shape in shapes if shape.group in ("forward", "backward"))
    assert len(list(calls.quick_shapes())) < 10


@pytest.mark.parametrize("window, causal, lengths", [
    (-1, False, ()), (-1, True, ()), (3, True, ()), (-1, True, (5, 9, 2))])
def test_operations_are_those_of_visible_pairs(window, causal, lengths):
    shape = calls.Shape("forward", "forward", 2, 1, 1, 9, 9, 8, causal, window=window, lengths=lengths)
    seen = sum(1 for n in lengths or (9, 9) for i in range(n) for j in range(n)
               if not causal or (j <= i and (window < 0 or j >= i - window)))
    squares = sum(n for n in lengths or (9, 9)) / 2  # a causal square counts as half of it, as everywhere in bench/
    assert shape.pairs == pytest.approx(seen - (squares if causal and window < 0 else 0))
    assert shape._replace(direction="backward").flops == 2.5 * shape.flops


@pytest.mark.parametrize("group", calls.GROUPS)
def test_every_group_runs_and_agrees(group):
    for shape in toy(group)[:8]:
        tensors, forms, reason = working(Ours(), shape)
        assert forms, (shape, reason)
        expected = next(iter(forms.values()))()
        found, why = calls.working_forms(calls.FlashAttention(fake_fa3()), tensors, expected)
        assert set(found) == set(forms), why
        for name, backend in calls.BACKENDS.items():
            _, why = calls.working_forms(calls.Torch(backend), tensors, expected)
            assert why and "\n" not in why
        if shape.softcap or shape.page_size:
            assert "scaled_dot_product_attention" in why


def test_why_a_peer_is_missing():
    shape = toy("softcap")[0]
    old = fake_fa3(flash_attn_func=lambda q, k, v, causal=False: attend(q, k, v, causal))
    old.flash_attn_func.__name__ = "flash_attn_func"
    tensors, ours, _ = working(Ours(), shape)
    expected = ours["func"]()
    assert calls.working_forms(calls.FlashAttention(old), tensors, expected) == (
        {}, "flash_attn_func of this version has no softcap")
    wrong = fake_fa3(flash_attn_func=lambda q, k, v, **options: torch.zeros_like(q))
    assert "differs from that of cuflash by 1.000 of the norm" in calls.working_forms(
        calls.FlashAttention(wrong), tensors, expected)[1]

    def broken(q, k, v, **options):
        raise ValueError("no kernel for this\nand a long story")
    found = calls.working_forms(calls.FlashAttention(fake_fa3(flash_attn_func=broken)), tensors, expected)
    assert found == ({}, "no kernel for this")
    decode = calls.Tensors(toy("decode")[0], "cpu", torch.float32)
    found = calls.working_forms(calls.FlashAttention(types.SimpleNamespace()), decode)
    assert found == ({}, "this version has no flash_attn_with_kvcache")


def test_arguments(capsys):
    options = peers.arguments(["lib.so", "--quick", "--groups", "decode,forward"])
    assert options.rounds == peers.ROUNDS["quick"] and options.groups == ["decode", "forward"]
    assert options.peers == list(calls.PEERS)
    for words, message in (["--peers", "fa9"], "--peers has fa9"), (["--json", "/nowhere/x"], "folder"):
        with pytest.raises(SystemExit):
            peers.arguments(["lib.so", *words])
        assert message in capsys.readouterr().err


def test_contestants_alternate_with_equally_many_rounds():
    order, times = [], iter(range(100))
    made = peers.in_rounds({"a": "A", "b": "B"}, lambda call: order.append(call) or next(times), 4)
    assert order == ["A", "B"] * 6 and made == {"a": [4, 6, 8, 10], "b": [5, 7, 9, 11]}


@pytest.fixture
def file(tmp_path):
    """Every shape with times that are made up: cuflash as fast as FA3, slower than it at decode."""
    made, absences = [], []
    for shape in calls.all_shapes():
        base = 1.0 if shape.direction != "decode" else 2.0
        times = {("cuflash", "slow"): [9.0], ("cuflash", "fast"): [base], ("fa3", "func"): [1.0, 1.0, 5.0],
                 ("torch-cudnn", "sdpa"): [1.5]}
        if shape.page_size or shape.softcap:
            del times["torch-cudnn", "sdpa"]
            absences.append({"contestant": "torch-cudnn", **peers.described(shape), "reason": "has none"})
        made += peers.best_forms(shape, times)
    options = peers.arguments(["lib.so", "--dry-run", "--commit", "abcdef0"])
    content = peers.content_of(["lib.so"], options, {"cuflash": "0.1.0", "fa3": "3.0"}, {"bf16_tflops": 700.0},
                               made, absences, {"fa4": "cannot be imported"})
    peers.write_whole(tmp_path / "h200_peers.json", content)
    return tmp_path / "h200_peers.json"


def test_the_file_is_one_that_plot_reads(file):
    run = results.read(str(file))
    content = json.loads(file.read_text())
    assert len(run.points) == len(content["results"]) and run.command == "python bench/peers_cuda.py lib.so"
    assert {each["variant"] for each in content["variants"]} == {
        "window of 1024 keys", "softcap 50", "16 packed sequences"}
    assert content["commit"] == "abcdef0" and content["not_measured"] == {"fa4": "cannot be imported"}
    assert all(each["form"] == "fast" for each in content["results"] if each["contestant"] == "cuflash")
    assert {each["reason"] for each in content["missing"]} == {"has none"}


def test_tables_are_made_of_the_file(file, monkeypatch):
    for path in benchmark_data.DATA.glob("*.json"):
        if path.name != file.name:
            (file.parent / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(benchmark_data, "DATA", file.parent)
    made = {name: "\n".join(block("en")) for name, block in benchmark_tables.BLOCKS.items()}
    assert "| H200 | bf16 | FA3 | 1.00 | 1.00 | 0 of 36 | 1.00 | 1.00 | 0 of 36 |" in made["summary"]
    assert "| H200 | decode, contiguous cache | FA3 | **0.50** | **0.50** | 5 of 5 |" in made["summary"]
    assert "relative to FA3 / cuDNN" in made["dense"] and "(1.00 / 1.50)" in made["dense"]
    assert "against FA3 | against cuDNN" in made["more"]
    assert "softcap, S=4,096 | 1 | 1.00 | – |" in made["more"]
    assert "pages of 16 to those of FA3" in made["decode"] and "commit abcdef0" in made["decode"]
    assert "against FA3 | against cuDNN" in made["readme"]
    assert "对比 FA3" in "\n".join(benchmark_tables.BLOCKS["readme"]("zh"))


def test_pages_are_what_the_data_gives():
    assert list(benchmark_tables.stale()) == []
