"""python -m cuflash.bench: its grid, and a short run whose file records the results."""

import argparse
import json
import re
import signal
import subprocess
import sys

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
    decode = points("--preset decode --len 100,100 --batch 3")  # flags override the preset
    assert decode[1:] == [grid.Point("cpu", "decode", "f32", 3, 32, 8, 1, 100, 128, 128, False, 64)]
    assert decode[1].key_value_bytes() == 3 * 8 * 100 * 256 * 4


def test_operations():
    (point,) = points("--batch 2 --heads 3 --len 10 --head-dim 8 --causal 1 --direction backward")
    assert point.operations() == 2.5 * 2 * 2 * 3 * 10 * 10 * 8
    (point,) = points("--batch 2 --heads 3 --len 10 --len-q 4 --head-dim 8 --causal 1")
    assert point.operations() == 4 * 2 * 3 * (4 * 10 - 8) * 8
    assert timing.quantile([4, 1, 3, 2], 0.25) == 1.75


@pytest.mark.parametrize("words, reason", [
    ("--len 0", "--len has 0"), ("--causal 2", "--causal has 2"), ("--hidden 100", "--hidden 100 is not a multiple"),
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
    lines = printed.out.splitlines()
    averages = [line for line in lines if line.startswith("cuflash is ")]
    assert len(lines) == 2 + len(found) + len(averages) and "it does not read pages" in printed.err
    assert {line.split(" fast as ")[1].split()[0] for line in averages} == {n for n, _, _ in found} - {"cuflash"}
    assert len(re.findall(r" 1\.00x", printed.out)) >= 4 and re.search(r"torch-math .*\d\.\d\dx", printed.out)


def test_ratio_is_of_times():
    point = grid.Point("cpu", "forward", "f32", 1, 8, 8, 64, 64, 64, 64, False, 0)
    result = bench.result_of("torch-math", point, [3.0, 3.0, 3.0], {}, None)
    assert bench.line_of(result, point, 1.5).endswith("2.00x") and "x" not in bench.line_of(result, point, None)[-8:]


@pytest.mark.parametrize("name", ["fp16", "float16", "half", "f16", "FP16", "Half"])
def test_usual_spellings(name):
    assert points(f"--dtype {name} --causal --len 8")[0][2:] == ("f16", 1, 8, 8, 8, 8, 64, 64, True, 0)


@pytest.mark.parametrize("words, sentence", [
    ("--lenn 8", "unknown flag '--lenn'; did you mean '--len'?"),
    ("--seqlen=8", "unknown flag '--seqlen'; did you mean '--len'?"),
    ("--num-heads 8", "unknown flag '--num-heads'; did you mean '--heads'?"),
    ("--xyz", "unknown flag '--xyz'; python -m cuflash.bench --help lists its flags"),
    ("--dtype int8", "argument --dtype: got 'int8', may have f64, f32, f16, bf16"),
    ("--json .", "--json .: it is a directory"),
])
def test_a_bad_flag_is_one_sentence(words, sentence, capsys):
    with pytest.raises(SystemExit) as ended:
        bench.main(words.split())
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"python -m cuflash.bench: {sentence}\n"


def test_interrupted_run_keeps_what_is_finished(device, monkeypatch, tmp_path, capsys):
    """Ctrl-C during the third of four points: two are printed, averaged and written."""
    calls, measured = [], timing.CpuTimer.milliseconds if device == "cpu" else timing.CudaTimer.milliseconds

    def milliseconds(self, contestants, seconds):
        calls.extend(["point"] if "cuflash" in contestants else [])
        if len(calls) == 3:
            raise KeyboardInterrupt
        return measured(self, contestants, seconds)

    monkeypatch.setattr(timing.CpuTimer if device == "cpu" else timing.CudaTimer, "milliseconds", milliseconds)
    path = tmp_path / "part.json"
    words = [*SMALL[2:], "--len", "10,20,30,40", "--device", device, "--contestant", "cuflash,torch-math"]
    assert bench.main([*words, "--json", str(path)]) == 130
    printed = capsys.readouterr()
    assert "interrupted after 2 of 4 points" in printed.err and "Traceback" not in printed.err
    assert "cuflash is " in printed.out and "over 2 points" in printed.out
    assert [r["len_k"] for r in json.loads(path.read_text())["results"]] == [10, 10, 20, 20]


def test_a_signal_ends_without_a_traceback(tmp_path):
    """SIGINT to a separate process, as Ctrl-C sends it."""
    words = ("-m cuflash.bench --device cpu --len 16,2048 --seconds 0.01 --contestant cuflash,torch-math --batch 8 "
             "--threads 1").split()
    # A shell without job control ignores SIGINT in its background processes, and children inherit that.
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    lines = [process.stdout.readline() for _ in range(4)]  # ceilings, header, and both contestants at the first point
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 130 and "Traceback" not in err, err
    assert "torch-math" in lines[3] and "interrupted after 1 of 2 points" in err and "over 1 point\n" in out


def test_a_reader_that_has_read_enough():
    """python -m cuflash.bench | head -1"""
    words = "-m cuflash.bench --device cpu --len 8,16,24 --heads 1 --seconds 0.001 --contestant cuflash".split()
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.readline()
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(timeout=300) in (0, 141) and "Traceback" not in err and "Exception" not in err, err


def test_contestants_that_refuse(device, monkeypatch, capsys):
    """A point that no contestant computes is left out with the reason, and so is a contestant that fails."""
    assert bench.main([*SMALL, "--device", device, "--contestant", "torch-math", "--direction", "decode",
                       "--page-size", "16"]) == 1
    printed = capsys.readouterr()
    assert "torch-math: it does not read pages" in printed.err and "nothing was measured" in printed.err

    def refuse(*_, **__):
        raise ValueError("CUFLASH_X: is 'abc', must be a number")

    monkeypatch.setattr(cuflash, "attention", refuse)
    assert bench.main([*SMALL, "--device", device, "--contestant", "cuflash,torch-math"]) == 1
    printed = capsys.readouterr()
    assert "left out of 1 point: cuflash: CUFLASH_X: is 'abc', must be a number" in printed.err
    assert "torch-math" in printed.out and "cuflash could not be measured" in printed.err


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
