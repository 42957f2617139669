"""bench/peers_cuda.py, bench/world.py and bench/few_queries.py without a GPU: shapes, peers that lack something, files, and their tables."""

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
import peers_shapes as shapes  # noqa: E402
import documents  # noqa: E402
import few_queries  # noqa: E402
import world  # noqa: E402
import world_shapes  # noqa: E402


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
    found = [shape for shape in shapes.toy_shapes() if shape.group == group]
    return list(dict.fromkeys(found))


def working(library, shape, expected=None):
    tensors = calls.Tensors(shape, "cpu", torch.float32)
    torch.manual_seed(3)
    return tensors, *calls.working_forms(library, tensors, expected)


def test_shapes():
    found = list(shapes.all_shapes())
    assert {shape.group for shape in found} == set(shapes.GROUPS) and len(found) == len(set(found))
    assert {shape.group for shape in shapes.toy_shapes()} == set(shapes.GROUPS)
    assert sum(shapes.RAGGED) == shapes.TOKENS
    assert all(shape.batch * shape.len_q == shapes.TOKENS for shape in found if shape.group in ("forward", "backward"))
    assert len(list(shapes.quick_shapes())) < 10


@pytest.mark.parametrize("window, causal, lengths", [
    (-1, False, ()), (-1, True, ()), (3, True, ()), (-1, True, (5, 9, 2))])
def test_operations_are_those_of_visible_pairs(window, causal, lengths):
    shape = shapes.Shape("forward", "forward", 2, 1, 1, 9, 9, 8, causal, window=window, lengths=lengths)
    seen = sum(1 for n in lengths or (9, 9) for i in range(n) for j in range(n)
               if not causal or (j <= i and (window < 0 or j >= i - window)))
    squares = sum(n for n in lengths or (9, 9)) / 2  # a causal square counts as half of it, as everywhere in bench/
    assert shape.pairs == pytest.approx(seen - (squares if causal and window < 0 else 0))
    assert shape._replace(direction="backward").flops == 2.5 * shape.flops


@pytest.mark.parametrize("group", shapes.GROUPS)
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
    for shape in shapes.all_shapes():
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
    assert "| documents by mask tensor | backward |" in made["world"]
    assert made["world-summary"].splitlines()[0] in made["world"]
    assert "pages of 16 to those of FA3" in made["decode"] and "commit abcdef0" in made["decode"]
    assert "against FA3 | against cuDNN" in made["readme"]
    assert "对比 FA3" in "\n".join(benchmark_tables.BLOCKS["readme"]("zh"))


class Textbook:
    """Every option of a shape by its definition: stands in for cuflash at the cases of bench/world.py."""

    def forms(self, t):
        if t.shape.direction == "decode":
            return {"textbook": lambda: self.attend(t, t.q, t.k, t.v)}
        return {"textbook": calls.directed(t, lambda *inputs: self.attend(t, *inputs))}

    def version(self):
        return "0.1.0"

    def attend(self, t, q, k, v, *learned):
        if not t.shape.lengths:
            return self.sequences(t, q, k, v, *learned)
        ends = t.cu.tolist()
        return torch.cat([self.sequences(t, *(x[None, a:b] for x in (q, k, v)))[0] for a, b in zip(ends, ends[1:])])

    def sequences(self, t, q, k, v, *learned):
        s = t.shape
        q, k, v = (x.float().transpose(1, 2) for x in (q, k, v))
        k, v = (x.repeat_interleave(s.heads_q // s.heads_k, 1) for x in (k, v))
        scores = q @ k.transpose(2, 3) / s.head_dim**0.5
        scores = s.softcap * torch.tanh(scores / s.softcap) if s.softcap else scores
        j = torch.arange(k.shape[2])
        i = torch.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2]  # the last query is at the last key
        scores = scores - t.slopes[:, None, None] * (i - j).abs() if s.alibi else scores
        scores = scores + (learned[0] if s.bias == "learned" else t.bias).float() if s.bias else scores
        hidden = (j > i) & s.causal | ((i - j > s.window) & (s.window >= 0))
        if s.mask:
            hidden = hidden | ~t.mask
        if s.padded:
            hidden = hidden | (j >= t.own_lengths[:, None, None, None])
        scores = scores.masked_fill(hidden, -torch.inf)
        if s.sinks:
            sinks = learned[-1].float()[:, None, None].expand(*scores.shape[:3], 1)
            weights = torch.cat([scores, sinks], 3).softmax(3)[..., :-1]
        else:
            weights = scores.softmax(3)
        if s.padded:
            weights = weights * (i < t.own_lengths[:, None, None, None])
        weights = torch.nn.functional.dropout(weights, s.dropout) if s.dropout else weights
        return (weights @ v).transpose(1, 2).to(t.q.dtype)


def test_the_world_has_names():
    found = list(world_shapes.all_shapes())
    assert len(found) == len(set(found)) and len({shape.group for shape in found}) >= 45
    assert {shape.direction for shape in found} == {"forward", "backward", "decode"}
    quick = world_shapes.quick_shapes()
    assert [(shape.group, shape.direction) for shape in quick] == [
        (shape.group, shape.direction) for shape in found if (shape.group, shape.direction) in world_shapes.QUICK]
    assert len(quick) == len(world_shapes.QUICK)


def test_a_problem_without_its_options():
    by_name = {shape.group: shape for shape in world_shapes.all_shapes() if shape.direction == "backward"}
    causal = by_name["causal"]
    for name in ("softcap 30", "ALiBi", "dropout 0.1", "window 1024", "sinks", "MQA 16/1", "deterministic",
                 "heads first in memory"):
        assert by_name[name].plain == causal._replace(group=name), name
    assert causal.plain is None and by_name["packed, 8 uneven"].plain is None
    assert by_name["documents by mask tensor"].pairs == 4 * (5 * 700**2 + 596**2) / 2
    assert by_name["padded, half full"].pairs == causal.pairs * (2 + 2 / 4) / 4
    assert by_name["192/128"].flops == 2 * by_name["192/128"].pairs * 32 * (3 * 192 + 2 * 128)


def test_the_world_runs_and_agrees(monkeypatch, tmp_path, capsys):
    """A dry run with definitions in place of the library; peers are those that compute on a CPU."""
    monkeypatch.setattr(peers, "open_libraries", lambda options: (
        {"cuflash": Textbook(), "fa3": calls.FlashAttention(fake_fa3()),
         "torch-flash": calls.Torch(calls.BACKENDS["torch-flash"])}, {"fa4": "cannot be imported"}, {"cuflash": "0.1.0"}))
    path = tmp_path / "world.json"
    world.main(["lib.so", "--dry-run", "--rounds", "1", "--json", str(path), "--commit", "abcdef0"])
    content = json.loads(path.read_text())
    source = benchmark_data.Bench("world", content)
    standings = benchmark_data.standings(source)
    assert len(standings) == len(list(world_shapes.all_shapes()))
    assert content["command"].startswith("python bench/world.py lib.so") and content["commit"] == "abcdef0"
    reasons = {each["reason"] for each in content["missing"]}
    assert not [reason for reason in reasons if "differs" in reason], reasons
    assert "it takes no bias, no mask tensor and no padded batch" in reasons
    with_peer = [each for each in standings if each.ratio is not None]
    assert [each.ratio for each in with_peer] == sorted(each.ratio for each in with_peer)
    assert all(each.to_plain for each in standings if each.name in ("softcap 30", "GQA 64/8", "dropout 0.1"))
    table = capsys.readouterr().out.split("| case |")[1]
    assert table.count("\n| ") == len(standings)


def test_times_against_the_number_of_queries(monkeypatch, tmp_path):
    monkeypatch.setattr(peers, "open_libraries", lambda options: (
        {"cuflash": Textbook(), "fa3": calls.FlashAttention(fake_fa3())}, {}, {"cuflash": "0.1.0"}))
    path = tmp_path / "few.json"
    few_queries.main(["lib.so", "--dry-run", "--rounds", "1", "--queries", "64,128,4096", "--json", str(path)])
    source = benchmark_data.Bench("few_queries", json.loads(path.read_text()))
    found = {(p["heads_q"], p["heads_k"], p["len_q"]): set(by) for p, by in source.points.items()}
    assert found == {(4, heads_k, n): {"cuflash", "fa3"} for heads_k in (4, 1) for n in (1, 2, 64)}


def test_documents_by_mask_and_packed(monkeypatch, tmp_path):
    class Summarizing(Textbook):
        def summarize(self, mask):
            assert mask.dtype == torch.bool
            return {}
    monkeypatch.setattr(peers, "open_libraries", lambda options: ({"cuflash": Summarizing()}, {}, {"cuflash": "0.1.0"}))
    monkeypatch.setattr(benchmark_data, "DATA", tmp_path)
    assert "bench/documents.py" in benchmark_tables.documents("en")[0]
    path = tmp_path / benchmark_data.DOCUMENTS
    documents.main(["lib.so", "--dry-run", "--rounds", "1", "--json", str(path)])
    source = benchmark_data.Bench("documents", json.loads(path.read_text()))
    assert all(set(by) == {"cuflash", "cuflash-summary", "cuflash-packed"} for by in source.points.values())
    assert {p["variant"] for p in source.points} == {f"mask of {n} token documents" for n in (3, 10, 31)}
    assert [row.split(" | ")[:2] for row in benchmark_tables.documents("en")[2:6]] == [
        ["| 10", "32"], ["| 3", "32"], ["| 31", "32"], ["| 10", "16"]]


def test_an_interrupted_run_keeps_what_it_measured(monkeypatch, tmp_path):
    monkeypatch.setattr(peers, "open_libraries", lambda options: ({"cuflash": Textbook()}, {}, {"cuflash": "0.1.0"}))
    whole = world.measure

    def measure(shape, *more):
        if shape.direction == "backward":
            raise KeyboardInterrupt
        return whole(shape, *more)
    monkeypatch.setattr(world, "measure", measure)
    path = tmp_path / "world.json"
    world.main(["lib.so", "--dry-run", "--rounds", "1", "--cases", "causal", "--json", str(path)])
    content = json.loads(path.read_text())
    assert content["interrupted"] == "1 of 6 points were measured" and len(content["results"]) == 1


@pytest.mark.parametrize("name", ["causal", "softcap 30", "ALiBi", "bias", "mask tensor", "documents by mask tensor",
                                  "padded, half full", "gpt-oss: 64/8, D=64, window 128, sinks, 8k"])
def test_flex_agrees(name):
    from peers_flex import Flex
    shape = next(shapes.toy(shape) for shape in world_shapes.all_shapes() if shape.group == name)
    tensors = calls.Tensors(shape, "cpu", torch.float32)
    expected = Textbook().forms(tensors)["textbook"]()
    forms, why = calls.working_forms(Flex(), tensors, expected, 1e-4)
    assert list(forms) == ["eager"], why


def test_the_world_is_a_block_of_a_page(file, monkeypatch):
    monkeypatch.setattr(benchmark_data, "DATA", file.parent)
    (file.parent / benchmark_data.WORLD).write_bytes(file.read_bytes())
    made = "\n".join(benchmark_tables.world("en"))
    assert "20 are below 1, 20 below 0.9" in made and made.count("| decode |") == 20 and "h200_world.svg" in made


def test_cases_are_chosen(capsys):
    chosen = world.arguments(["lib.so", "--cases", "softcap; alibi", "--directions", "forward"]).shapes
    assert {shape.direction for shape in chosen} == {"forward"} and len(chosen) == 4
    with pytest.raises(SystemExit):
        world.arguments(["lib.so", "--cases", "nothing like it"])
    assert "no case is called that" in capsys.readouterr().err


def test_pages_are_what_the_data_gives():
    assert list(benchmark_tables.stale()) == []
