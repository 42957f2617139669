"""examples/train_gpt.py: a short run passes its own check, which notices slightly wrong attention."""

import pathlib
import sys
from xml.etree import ElementTree

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "examples"))
import train_gpt  # noqa: E402

STEPS = ["--steps", "10", "--check"]


@pytest.fixture(autouse=True)
def one_thread():
    """The model is too small to gain from threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_short_run(device, capsys, tmp_path):
    path = tmp_path / "folder" / "curves.svg"
    assert train_gpt.main([*STEPS, "--device", device, "--plot", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "the curves agree" in printed and printed.count("last tenth") == 2
    drawn = ElementTree.parse(path).getroot()
    lines = drawn.findall("{http://www.w3.org/2000/svg}polyline")
    assert [len(line.get("points").split()) for line in lines] == [10, 10, 10]


@pytest.mark.parametrize("fault", ["scaled", "no gradient of k"])
def test_the_check_has_teeth(device, capsys, monkeypatch, fault):
    right = train_gpt.cuflash_attention
    monkeypatch.setitem(train_gpt.ATTENTIONS, "cuflash", {
        "scaled": lambda q, k, v: right(q, k, v) * 1.004,
        "no gradient of k": lambda q, k, v: right(q, k.detach(), v),
    }[fault])
    assert train_gpt.main([*STEPS, "--device", device]) == 1
    assert "do not agree" in capsys.readouterr().err
