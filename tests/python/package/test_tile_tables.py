"""tools/tile_tables.py: which measured configs become built-in tiles."""

import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools"))
import tile_tables  # noqa: E402

HEAD = """# cuflash tune --csv times.csv
# NVIDIA H200, sm_90a, 132 multiprocessors
# 0.1.0, kernels 0123456789abcdef, 2026-01-01
direction,dtype,batch,heads_q,heads_k,len_q,len_k,head_dim,head_dim_v,causal,options,choice,ms,verdict
"""


def row(ms, verdict, tile_k=128, warpgroups=2, options="alibi", direction="forward", order=15, dim=64, len_q=3072,
        causal=0):
    config = f"warpgroups={warpgroups} stages=2"
    config = f"tile_k={tile_k} {config} order={order}" if direction == "forward" else f"{config} adds_dq=1"
    return (f'{direction},bf16,1,33,33,{len_q},3072,{dim},{dim},{causal},"{options}",sm90 {config},{ms},"{verdict}"\n')


def tables(*rows):
    _, forward, backward = tile_tables.tables(HEAD + "".join(rows))
    return forward, backward


def test_the_fastest_of_each_number_of_warpgroups():
    forward, backward = tables(row(1.0, "built in"), row(0.8, "final", tile_k=96),
                               row(0.85, "first look", tile_k=64, warpgroups=3),
                               row(0.82, "final", tile_k=96, warpgroups=3, order=142), row(1.05, "final", warpgroups=4),
                               row("", "spills 8 bytes of registers", tile_k=112))
    assert forward == ["{64, 64, kAlibi, false, 2, 96, 2, kPingPong | kPinWait | kStoreBySmem | kPrefetchQ, 1.000}",
                       "{64, 64, kAlibi, false, 3, 96, 2, kPinWait | kStoreBySmem | kPrefetchQ | kFirstMax, 1.025}"]
    assert backward == []


def test_what_was_built_in_stays_for_less_than_two_percent():
    assert "{64, 64, kAlibi, false, 2, 128," in tables(row(1.0, "built in"), row(0.99, "final", tile_k=96))[0][0]
    assert "{64, 64, kAlibi, false, 2, 96," in tables(row(1.0, "built in"), row(0.97, "final", tile_k=96))[0][0]


def test_times_are_per_row_of_the_busiest_cta():
    # 33 heads of 192 queries: two tiles of 128 each, or one of 192, are less than one round either way.
    forward, _ = tables(row(1.0, "built in", len_q=192), row(1.2, "final", tile_k=64, warpgroups=3, len_q=192))
    assert [line.split(", ")[4] for line in forward] == ["3", "2"]


def test_backward_has_one_row_and_sets_keep_apart():
    forward, backward = tables(row(1.0, "built in", direction="backward", options="softcap,dropout", warpgroups=2),
                               row(0.9, "final", direction="backward", options="softcap,dropout", warpgroups=3),
                               row(1.0, "built in", options="none"), row(1.0, "final", options="none", tile_k=96),
                               row(1.0, "built in", options="alibi,sinks"),
                               row(1.0, "final", options="alibi,sinks", tile_k=96),
                               row(1.0, "built in", options="mask"),
                               row(1.0, "built in", causal=1), row(0.9, "final", causal=1, tile_k=96),
                               row(1.0, "built in", options="bias", dim=100),
                               row(1.1, "final", options="bias", dim=100, order=3))
    assert backward == ["{64, 64, kSoftcap | kDropout, 3, 2, 1}"]
    # Plain calls, sinks, and what was compared with nothing have no rows.
    assert [line.split(", ")[:6] for line in forward] == [["{64", "64", "kAlibi", "true", "2", "96"],
                                                          ["{128", "128", "kBias", "false", "2", "128"]]


def test_kernels_of_other_families_have_no_row():
    line = row(1.0, "built in").replace("sm90 tile_k=128", "portable tile_q=64 tile_k=128")
    assert tables(line) == ([], [])


@pytest.mark.parametrize("text", ["", "# one line\n", HEAD.replace("132 multiprocessors", "many")])
def test_a_file_that_is_no_measurement_is_refused(text):
    with pytest.raises(SystemExit, match="tile_tables: "):
        tile_tables.tables(text)


def test_the_built_in_table_is_what_the_data_gives():
    made = tile_tables.header(tile_tables.DATA.read_text(), "docs/data/h200_tune_options.csv")
    assert tile_tables.TABLES.read_text() == made
