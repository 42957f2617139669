"""python -m cuflash.bench: its grid, and a short run whose file says what was measured."""

import argparse
import json
import re

import pytest

from cuflash.bench import grid

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import cuflash  # noqa: E402
from cuflash.bench import __main__ as bench  # noqa: E402
from cuflash.bench import timing  # noqa: E402

SMALL = ["--len", "40", "--heads", "4", "--heads-k", "2", "--head-dim", "16", "--seconds", "0.001"]


def points(words, device="cpu"):
    parser = argparse.ArgumentParser()
    grid.add_flags(parser)
    return grid.points(parser.parse_args(words.split()), device)


def test_presets():
    paper = points("--preset paper", "cuda")
    assert len(paper) == 2 * 3 * 2 * 6
    assert all(p.batch * p.len_k == 16384 and p.heads_q * p.head_dim == 2048 and p.dtype == "bf16" for p in paper)
    assert len(points("--preset training")) == 2 * 4 * 4 * 4
    decode = points("--preset decode --len 100,100 --batch 3")  # flags go before the preset
    assert decode[1:] == [grid.Point("cpu", "decode", "f32", 3, 32, 8, 1, 100, 128, 128, False, 64)]
    assert decode[1].key_value_bytes() == 3 * 8 * 100 * 256 * 4


def test_operations():
    (point,) = points("--batch 2 --heads 3 --len 10 --head-dim 8 --causal 1 --direction backward")
    assert point.operations() == 2.5 * 2 * 2 * 3 * 10 * 10 * 8
    (point,) = points("--batch 2 --heads 3 --len 10 --len-q 4 --head-dim 8 --causal 1")
    assert point.operations() == 4 * 2 * 3 * (4 * 10 - 8) * 8
    assert timing.quantile([4, 1, 3, 2], 0.25) == 1.75


@pytest.mark.parametrize("words, reason", [
    ("--len 0", "--len has 0"), ("--causal 2", "--causal has 2"), ("--hidden 100", "--hidden 100 is no multiple"),
    ("--heads-k 3", "--heads-k 3 does not divide"), ("--batch 1 --tokens 9", "--batch excludes --tokens")])
def test_grids_that_are_none(words, reason):
    with pytest.raises(grid.GridError, match=re.escape(reason)):
        points(words)


def test_short_run(device, tmp_path, capsys):
    path = tmp_path / "now.json"
    words = [*SMALL, "--device", device, "--direction", "forward,backward,decode", "--causal", "1",
             "--page-size", "0,16", "--json", str(path)]
    assert bench.main(words) == 0
    content = json.loads(path.read_text())
    assert content["format"] == "cuflash-bench-1" and content["version"] == cuflash.__version__
    assert content["command"].startswith("python -m cuflash.bench --len 40")
    assert content["machine"]["cpu"] != "unknown" and content["ceilings"][device]["read_gbs"] > 0
    found = [(r["contestant"], r["direction"], r["page_size"]) for r in content["results"]]
    for direction in ("forward", "backward", "decode"):
        assert ("cuflash", direction, 0) in found and ("torch-math", direction, 0) in found
    assert [name for name, _, pages in found if pages] == ["cuflash"]
    for result in content["results"]:
        assert 0 < result["ms_low"] <= result["ms"] <= result["ms_high"]
        assert (result["gbs"] is not None) == (result["direction"] == "decode")
        assert (result["extra_bytes"] is not None) == (device == "cuda")
    printed = capsys.readouterr()
    assert printed.out.count("\n") == 1 + len(found) and "it reads no pages" in printed.err


def test_contestants_must_agree(device, monkeypatch, capsys):
    right = cuflash.attention
    monkeypatch.setattr(cuflash, "attention", lambda *tensors, **options: right(*tensors, **options) * 1.004)
    assert bench.main([*SMALL, "--device", device, "--dtype", "f32", "--contestant", "cuflash,torch-math"]) == 1
    assert "torch-math and cuflash differ by 0.0040" in capsys.readouterr().err


def test_usage(capsys, tmp_path):
    assert bench.main(["--contestant", "xformers"]) == 2
    assert bench.main(["--len", "0"]) == 2
    if not torch.cuda.is_available():
        assert bench.main(["--device", "cuda"]) == 2
    for words in (["--seconds", "0"], ["--threads", "-1"], ["--json", str(tmp_path / "nowhere" / "x")], ["--len", "x"]):
        with pytest.raises(SystemExit):
            bench.main(words)
    assert capsys.readouterr().err
