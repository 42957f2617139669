"""cuflash.plot: results files are read or refused, and pictures and report show what stands in them."""

import base64
import copy
import importlib.util
import json
import os
import subprocess
import sys
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from cuflash.plot import charts, results, style, text
from cuflash.plot.command import main, pictures_of
from cuflash.plot.facets import LENGTH, facets_of, rows_of
from cuflash.plot.lines import LABEL_GAP, spread
from cuflash.plot.problem import Problem
from cuflash.plot.ratios import ratios, summary
from cuflash.plot.roofline import rooflines
from cuflash.plot.scene import scenes_of

SLOWER = {"cuflash": 1.0, "naive": 8.0, "torch-flash": 0.5}


def point(contestant="cuflash", direction="forward", length=512, queries=None, batch=1, heads=2, dim=64, causal=False,
          device="cuda", ms=None):
    problem = Problem(device, direction, "bf16", batch, heads, heads, queries or length, length, dim, dim, causal, 0)
    ms = SLOWER.get(contestant, 2.0) * length / 512 if ms is None else ms
    rate = problem.flops / ms * 1e-9 if direction != "decode" else None
    gbs = 2 * batch * heads * length * dim * 2 / ms * 1e-6 if direction == "decode" else None
    return {"contestant": contestant, **problem._asdict(), "ms": ms, "ms_low": ms * 0.9, "ms_high": ms * 1.2,
            "tflops": rate, "gbs": gbs, "share": None, "clock_mhz": None,
            "extra_bytes": {"cuflash": 0, "naive": 4 * length**2}.get(contestant)}


def document(points, gpu="NVIDIA H200", ceilings=None):
    return {"format": "cuflash-bench-1", "command": "cuflash bench", "version": "0.1.0", "date": "2026-11-15T12:00:00Z",
            "machine": {"cpu": "a <script>processor</script> & more", "threads": 2, "gpu": gpu},
            "ceilings": ceilings or {"cuda": {"bf16_tflops": 0.5, "read_gbs": 4.0, "another": "later"}},
            "results": points}


def every_kind(*directions):
    points = [point(name, direction, length) for name in SLOWER for direction in directions for length in (512, 1024)]
    points += [point("cuflash", "decode", 1024, queries, batch) for queries, batch in ((1, 1), (1, 4), (8, 1))]
    return [*points, point("cuflash", "decode", 2048, 1), point("naive", "decode", 1024, 1)]


def write(folder, content, name="results.json"):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return str(path)


def scene(folder, *documents):
    return scenes_of([results.read(write(folder, each, f"{n}.json")) for n, each in enumerate(documents)])[0]


def palette_of(scene):
    return style.Palette(name for name, _ in scene.points)


def test_a_file_is_read(tmp_path):
    run = results.read(write(tmp_path, document(every_kind("forward", "backward"))))
    assert len(run.points) == 17 and run.machine("cuda") == "NVIDIA H200" and run.machine("cpu").startswith("a <")
    assert run.ceilings == {"cuda": {"bf16_tflops": 0.5, "read_gbs": 4.0}}
    assert run.points[0].problem.heads_q == 2 and run.points[0].ms == 1.0 and run.points[0].extra_bytes == 0


MISSING = object()
BROKEN = [
    ("format", "cuflash-bench-2", "format: got"),
    ("format", MISSING, "format: is missing"),
    ("command", 7, "command: got 7, must be a text"),
    ("version", "a\ud800", "version: got"),
    ("date", "x" * 3000, "date: got"),
    ("machine", [], "machine: got an array, must be an object"),
    ("machine.cpu", None, "machine.cpu: got null"),
    ("machine.threads", 0, "machine.threads: got 0, must be a whole number from 1"),
    ("machine.gpu", "a\nb", "machine.gpu: got"),
    ("ceilings", MISSING, "ceilings: is missing"),
    ("ceilings.tpu", {}, 'ceilings: has a member "tpu"'),
    ("ceilings.cuda.read_gbs", -1, "ceilings.cuda.read_gbs: got -1"),
    ("results", {}, "results: must be an array"),
    ("results", [], "and has 0"),
    ("results.0", 5, "results[0]: got 5, must be an object"),
    ("results.0.contestant", "_hidden", "results[0].contestant: got"),
    ("results.0.contestant", "a" * 41, "results[0].contestant: got"),
    ("results.0.device", "tpu", "must be one of cpu, cuda"),
    ("results.0.direction", ["forward"], "must be one of forward, backward, decode"),
    ("results.0.dtype", "f8", "must be one of f64, f32"),
    ("results.0.batch", True, "results[0].batch: got true"),
    ("results.0.len_q", 512.0, "results[0].len_q: got 512.0"),
    ("results.0.len_k", 2**31, "from 1 to 2147483647"),
    ("results.0.head_dim", MISSING, "results[0].head_dim: is missing"),
    ("results.0.heads_k", 3, "a multiple of heads_k, which is 3"),
    ("results.0.causal", 1, "must be true or false"),
    ("results.0.page_size", -1, "from 0"),
    ("results.0.ms", 0, "results[0].ms: got 0"),
    ("results.0.ms", "1", 'got "1"'),
    ("results.0.ms", 10**400, "results[0].ms: got 1000"),
    ("results.0.ms_low", 2.0, "at most ms, which is 1"),
    ("results.0.ms_high", 0.5, "at least ms, which is 1"),
    ("results.0.tflops", None, "results[0].tflops: got null"),
    ("results.0.share", "80%", "results[0].share: got"),
    ("results.0.extra_bytes", 2**61, "results[0].extra_bytes: got"),
]


@pytest.mark.parametrize("place, value, message", BROKEN, ids=[f"{p}-{m}" for p, _, m in BROKEN])
def test_what_is_wrong_in_a_file_is_named(tmp_path, place, value, message):
    broken = document([point()])
    *path, last = [int(name) if name.isdigit() else name for name in place.split(".")]
    inside = broken
    for name in path:
        inside = inside[name]
    if value is MISSING:
        del inside[last]
    else:
        inside[last] = copy.copy(value)
    file = write(tmp_path, broken)
    with pytest.raises(results.ResultsError) as error:
        results.read(file)
    assert message in str(error.value) and str(error.value).startswith(file)


@pytest.mark.parametrize("content, message", [
    (b"", "is not JSON"), (b"\xff\xfe", "is not UTF-8"), (b"[" * 200_000, "nested too deeply"),
    (b'{"a": NaN}', "holds NaN"), (b'{"a": 1, "a": 2}', 'the member "a" twice'), (b"[1]", "must be an object"),
    (json.dumps(document([point()])).encode()[:-20], "is not JSON"), (b" " * 5000, "is larger than"),
    (json.dumps(document([point()])).replace('"ms": 1.0', '"ms": 1e999').encode(), "results[0].ms: got Infinity"),
])
def test_what_is_no_results_file_is_refused(tmp_path, monkeypatch, content, message):
    if message == "is larger than":
        monkeypatch.setattr(results, "MAX_FILE_BYTES", 4999)
    with pytest.raises(results.ResultsError, match="results.json: ") as error:
        results.read(write(tmp_path, content))
    assert message in str(error.value)


def test_what_cannot_be_read_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere.json"):
        with pytest.raises(results.ResultsError, match="cannot be read"):
            results.read(str(path))


def test_work_and_bytes_of_a_problem():
    forward = Problem("cuda", "forward", "bf16", 2, 8, 4, 100, 100, 64, 64, False, 0)
    assert forward.flops == 4 * 2 * 8 * 100 * 100 * 64
    assert forward._replace(causal=True).pairs == 100 * 101 / 2
    assert forward._replace(direction="backward").flops == 2.5 * forward.flops
    assert forward.minimal_bytes == 2 * (2 * 8 * 100 * 64 * 2 + 2 * 2 * 4 * 100 * 64)
    assert forward._replace(direction="backward").minimal_bytes == 2 * forward.minimal_bytes + 4 * 2 * 8 * 100
    decode = forward._replace(direction="decode", len_q=2, len_k=10, causal=True)
    assert decode.pairs == 9 + 10 and decode._replace(len_q=12).pairs == 10 * 11 / 2


def test_several_files(tmp_path):
    first = document([point(ms=1.0), point("naive", ms=8.0), point("naive", length=1024)],
                     ceilings={"cuda": {"bf16_tflops": 0.7}})
    second = document([point(ms=2.0), point("torch-flash", ms=5.0), point(device="cpu")])
    merged, other = scenes_of([results.read(write(tmp_path, each, str(n))) for n, each in enumerate((first, second))])
    problem = results._point(point(), "").problem
    assert merged.points["cuflash", problem].ms == 2.0
    assert merged.ratios == {("naive", problem): 8.0, ("torch-flash", problem): 2.5}  # each of its own file
    assert merged.ceilings == {"bf16_tflops": 0.7, "read_gbs": 4.0}
    assert (other.device, other.name, len(other.points)) == ("cpu", "cpu", 1)
    elsewhere = scenes_of([results.read(write(tmp_path, document([point()], gpu))) for gpu in ("A", "B")])
    assert [each.name for each in elsewhere] == ["cuda", "cuda2"]


def test_the_batch_makes_panels_only_if_it_does_not_follow_from_the_length():
    def panels(*sizes):
        made = [results._point(point(length=s, batch=b, causal=c), "") for b, s in sizes for c in (False, True)]
        return facets_of(made, LENGTH)

    facets, common = panels((8, 512), (4, 1024), (2, 2048))
    assert [facet.title for facet in facets] == ["no mask", "causal"]
    assert common == "D 64, 2 heads, batch x length = 4k tokens"
    assert [[facet.title for facet in row] for row in rows_of(facets)] == [["no mask"], ["causal"]]
    facets, common = panels((8, 512), (4, 512), (8, 1024), (4, 1024))
    assert [[facet.title for facet in row] for row in rows_of(facets)] == [
        ["batch 4, no mask", "batch 8, no mask"], ["batch 4, causal", "batch 8, causal"]]


def test_words():
    assert [text.length(n) for n in (1, 512, 1000, 1024, 16384, 1 << 20)] == ["1", "512", "1000", "1k", "16k", "1M"]
    assert [text.size(n) for n in (0, 12, 1536, 3 << 30)] == ["0", "12 B", "1.5 KiB", "3 GiB"]
    assert [text.number(x) for x in (0.00012, 0.05, 1.234, 61.84, 701.5, 4200.0)] == [
        "0.00012", "0.05", "1.23", "61.8", "702", "4200"]
    assert text.speed_unit(0.99) == ("GFLOP/s", 1e3) and text.speed_unit(1.0) == ("TFLOP/s", 1.0)
    assert [text.ratio(x) for x in (0.901, 11.84, 173.2)] == ["0.90", "11.8", "173"]


def test_times_have_a_scale_in_each_panel_and_speeds_one_for_all(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    made = [point("cuflash", "decode", keys, queries) for keys in (512, 65536) for queries in (1, 64)]
    drawn = scene(tmp_path, document(made))
    pictures = {picture.name: picture for picture in charts.decode(drawn, palette_of(drawn))}
    with style.in_style():
        tops = {name: [axes.get_ylim()[1] for axes in picture.paint().axes] for name, picture in pictures.items()}
    short, long = tops["decode-queries-cuda-bf16"]
    assert long > 100 * short
    assert len(set(tops["decode-keys-cuda-bf16"])) == 1


def test_labels_keep_their_distance_and_their_order():
    moved = spread([0.1, 0.5, 0.51, 0.52, 0.9])
    assert all(b - a >= LABEL_GAP * 0.999 for a, b in zip(moved, moved[1:]))
    assert moved[0] == 0.1 and moved[4] == 0.9 and moved[2] == pytest.approx(0.51)


def test_only_drawing_needs_matplotlib(tmp_path, monkeypatch, capsys):
    code = "import sys, cuflash, cuflash.plot; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=os.environ).returncode == 0
    monkeypatch.setattr(style, "OLDEST", (99, 0))
    if importlib.util.find_spec("matplotlib"):
        assert main([write(tmp_path, document([point()])), "-o", str(tmp_path / "out")]) == 1
        assert "pip install --upgrade matplotlib" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main([write(tmp_path, document([point()])), "-o", str(tmp_path / "out")]) == 1
    assert "pip install matplotlib" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_arguments(tmp_path, capsys):
    file = write(tmp_path, document([point()]))
    for words, message in ([file], "nothing to write"), ([file, "-o", "x", "--format", "gif"], "must be png, svg"):
        with pytest.raises(SystemExit):
            main(words)
        assert message in capsys.readouterr().err
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    assert main([write(tmp_path, b"{}", "empty.json"), "-o", str(tmp_path / "out")]) == 1
    assert "empty.json: format: is missing" in capsys.readouterr().err and not (tmp_path / "out").exists()
    assert main([file, "-o", file]) == 1 and "cannot be made a folder" in capsys.readouterr().err
    many = [point(heads=n, dim=d) for n in range(1, 60) for d in range(1, 76)]
    assert main([write(tmp_path, document(many)), "-o", str(tmp_path / "out")]) == 1
    assert "at most 200 are drawn" in capsys.readouterr().err


class Outside(HTMLParser):
    """Everything that a page would load, and its elements."""

    def __init__(self):
        super().__init__()
        self.loaded, self.tags = [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.loaded += [value for name, value in attributes if name in ("src", "srcset", "data") or
                        (name == "href" and tag != "a")]


EXPECTED = ["decode-batch-cuda-bf16", "decode-keys-cuda-bf16", "decode-queries-cuda-bf16", "memory-cuda-decode-bf16",
            "memory-cuda-forward-bf16", "ratio-cuda-decode-bf16", "ratio-cuda-forward-bf16", "roofline-cuda-bf16",
            "speed-cuda-forward-bf16"]


def test_pictures_and_report(tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    file = write(tmp_path, document(every_kind("forward"), gpu="$x_{1$ <script>GPU</script>"))
    folder, page = tmp_path / "a" / "b", tmp_path / "report.html"
    assert main([file, "-o", str(folder), "--format", "svg", "--html", str(page)]) == 0
    assert "9 pictures as svg" in capsys.readouterr().out
    files = sorted(path.name for path in folder.iterdir())
    assert files == [f"{name}.svg" for name in EXPECTED]
    for name in files:
        assert ElementTree.parse(folder / name).getroot().tag.endswith("svg")
    page = page.read_text()
    seen = Outside()
    seen.feed(page)
    assert seen.tags.count("img") == len(EXPECTED) and "script" not in seen.tags
    assert [each.partition(",")[0] for each in seen.loaded] == ["data:image/svg+xml;base64"] * len(EXPECTED)
    drawn = base64.b64decode(seen.loaded[0].partition(",")[2]).decode()
    assert ElementTree.fromstring(drawn).tag.endswith("svg") and "prefers-color-scheme:dark" in drawn
    assert drawn.count(style.INK) == 1  # where the variable for it is set
    assert "http://" not in page and "https://" not in page
    assert "&lt;script&gt;processor&lt;/script&gt; &amp; " in page and "$x_{1$ &lt;script&gt;GPU&lt;" in page
    for figure in ("<td>8.00</td>", "<td>4 MiB</td>", "prefers-color-scheme"):
        assert figure in page


def test_the_same_picture_has_the_same_bytes_and_is_a_png(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    drawn = scene(tmp_path, document([point(length=n) for n in (512, 1024)]))
    picture = next(charts.speed(drawn, palette_of(drawn)))
    first, second = picture.save(["png", "svg"]), picture.save(["png", "svg"])
    assert first == second and first[0].startswith(b"\x89PNG\r\n\x1a\n")


def test_lines_show_the_figures_of_the_file(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    made = [point(name, length=length, causal=causal)
            for name in SLOWER for length in (512, 1024) for causal in (False, True)]
    drawn = scene(tmp_path, document(made))
    palette = palette_of(drawn)
    speed, memory = next(charts.speed(drawn, palette)), next(charts.memory(drawn, palette))
    with style.in_style():
        plain, causal = speed.paint().axes
    assert (plain.get_title(loc="left"), causal.get_title(loc="left")) == ("no mask", "causal")
    assert [tick.get_text() for tick in plain.get_xticklabels()] == ["512", "1k"] and plain.get_ylabel() == "GFLOP/s"
    lines = {line.get_color(): line for line in plain.lines}
    for name in SLOWER:
        rates = [1e3 * each["tflops"] for each in made if each["contestant"] == name and not each["causal"]]
        line = lines[style.KNOWN[name][0]]
        assert list(line.get_ydata()) == pytest.approx(rates) and line.get_marker() == style.KNOWN[name][1]
    bands = [band.get_datalim(plain.transData) for band in plain.collections]
    fastest = 1e3 * max(each["tflops"] for each in made if not each["causal"])
    slowest = 1e3 * min(each["tflops"] for each in made if not each["causal"])
    assert max(band.y1 for band in bands) == pytest.approx(fastest / 0.9)
    assert min(band.y0 for band in bands) == pytest.approx(slowest / 1.2)
    assert {label.get_text() for label in causal.texts} >= set(SLOWER)
    assert memory.table.headers == ["", "length (queries and keys)", "cuflash, extra memory", "naive, extra memory"]
    assert memory.table.rows[0] == ["no mask", "512", "0", "1 MiB"]


def test_ratios_are_those_of_the_file(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    made = [point(ms=2.0), point("naive", ms=34.0), point(length=1024, ms=4.0), point("naive", length=1024, ms=3.0)]
    drawn = scene(tmp_path, document([*made, point("torch-flash", length=4096)]))
    picture = next(ratios(drawn, palette_of(drawn)))
    with style.in_style():
        figure = picture.paint()
    axes = figure.axes[0]
    assert max(map(len, figure.get_suptitle().split("\n"))) <= style.TITLE_LETTERS * figure.get_size_inches()[0]
    assert [cell.get_text() for cell in axes.texts] == ["17.0", "0.75"]
    blue_over_red = [cell.get_facecolor()[2] - cell.get_facecolor()[0] for cell in axes.patches]
    assert blue_over_red[0] > 0.1 and blue_over_red[1] < -0.1  # purple above 1, orange below
    assert summary(drawn, palette_of(drawn)).rows == [
        ["bf16", "forward", "naive", "2", "3.57", "0.75", "batch 1, 2/2 heads, 1k, D 64"]]


def test_rooflines_have_the_ceilings_of_the_file(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    drawn = scene(tmp_path, document(every_kind("forward", "backward")))
    picture = next(rooflines(drawn, palette_of(drawn)))
    with style.in_style():
        panels = picture.paint().axes
    assert [axes.get_title(loc="left") for axes in panels] == ["forward", "backward", "decode"]
    corners = list(zip(*panels[0].lines[0].get_data()))
    assert corners[0][1] == pytest.approx(corners[0][0] * 4e-3)
    assert corners[1] == pytest.approx((125.0, 0.5)) and corners[2][1] == pytest.approx(0.5)
    ours = [line for line in panels[0].lines if line.get_color() == style.KNOWN["cuflash"][0]][0]
    problem = drawn.points["cuflash", results._point(point(), "").problem].problem
    assert min(ours.get_xdata()) == pytest.approx(problem.intensity)
    without = scene(tmp_path, document([point()], ceilings={"cpu": {}}))
    assert list(rooflines(without, palette_of(without))) == []
    assert len(pictures_of(without, palette_of(without))) == 2  # speed and memory


def test_few_queries_have_an_axis_of_their_own(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    square = [point(name, length=length, batch=4096 // length) for name in SLOWER for length in (512, 1024)]
    short = [point(name, length=8192, queries=queries) for name in SLOWER for queries in (1, 16)]
    drawn = scene(tmp_path, document(square + short))
    speed = list(charts.speed(drawn, palette_of(drawn)))
    assert [each.name for each in speed] == ["speed-cuda-forward-bf16", "speed-queries-cuda-forward-bf16"]
    assert "batch x length = 4k tokens" in speed[0].title  # few queries do not make panels of batches
    assert [row[0] for row in speed[1].table.rows] == ["1", "16"] and speed[1].table.headers[0] == "queries"
    assert [each.name for each in ratios(drawn, palette_of(drawn))] == [
        "ratio-cuda-forward-bf16", "ratio-queries-cuda-forward-bf16"]
    one = scene(tmp_path, document(square + short[:1]))
    assert [each.name for each in charts.speed(one, palette_of(one))] == ["speed-cuda-forward-bf16"]


def test_a_report_has_tables_that_need_no_scrolling(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    file, page = write(tmp_path, document(every_kind("forward"))), tmp_path / "report.html"
    assert main([file, "--html", str(page)]) == 0
    page = page.read_text()
    style_sheet = page[page.index("<style>"):page.index("</style>")]
    assert "max-height" not in style_sheet and "overflow: auto" not in style_sheet
    assert style_sheet.count("overflow-x") == 1 and "@media (max-width: 70rem) { .table { overflow-x" in style_sheet
    assert page.count('class="table wide"') == 1  # all points, with 18 columns: set smaller
    assert "<td>1 MiB</td>" in page and '<td class="words">cuflash</td>' in page  # figures right, words left
