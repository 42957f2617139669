"""examples/generate.py: the same tokens with and without a cache, and it notices a difference."""

import pathlib
import sys

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "examples"))
import generate  # noqa: E402

SHORT = ["--tokens", "12", "--prompts", "30", "3", "33"]


@pytest.fixture(autouse=True)
def one_thread():
    """The model is too small to gain from threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_same_tokens(device, capsys):
    assert generate.main([*SHORT, "--device", device]) == 0
    printed = capsys.readouterr().out
    assert "the tokens are the same" in printed and printed.count("tokens a second") == 2 and "shared" in printed


@pytest.mark.parametrize("fault", ["no rotary", "no copy", "length", "window"])
def test_it_has_teeth(fault, device, capsys, monkeypatch):
    right = generate.cuflash.attention_with_cache

    def wrong(*arrays, **options):
        if fault == "no rotary":
            options.update(rotary_cos=None, rotary_sin=None)
        elif fault == "length":
            options["cache_seqlens"] = (options["cache_seqlens"] - 1).clamp(min=0)
        elif fault == "window":
            options["window"] = (8, 0)
        return right(*arrays, **options)

    if fault == "no copy":  # a fork without it writes where its sibling reads
        append = generate.cuflash.PagePool.append
        monkeypatch.setattr(generate.cuflash.PagePool, "append", lambda *x: append(*x)._replace(copy=None))
    else:
        monkeypatch.setattr(generate.cuflash, "attention_with_cache", wrong)
    assert generate.main([*SHORT, "--device", device]) == 1
    assert "differ" in capsys.readouterr().err
