#!/usr/bin/env python3
"""Writes the built-in tiles of the sm90 families for sets of options, from measurements of `cuflash tune --csv`.

  tools/tile_tables.py            rewrites src/cuda/families/sm90_measured_tables.h from docs/data/h200_tune_options.csv
  tools/tile_tables.py --check    fails if the file does not match the data (tile_tables_test)

To repeat the measurement on an idle GPU:

  cuflash tune --device cuda --direction forward,backward --head-dim 64,128,256 --heads 33 --len 3072 --all-options
               --seconds 600 --csv docs/data/h200_tune_options.csv

With 33 heads of 3072 queries, tiles of 2, 3 and 4 warpgroups all make whole rounds on 132 multiprocessors, so that the
times of different tiles can be compared.
"""

import argparse
import csv
import math
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "docs/data/h200_tune_options.csv"
TABLES = ROOT / "src/cuda/families/sm90_measured_tables.h"
OPTIONS = {"softcap": "kSoftcap", "alibi": "kAlibi", "bias": "kBias", "mask": "kMaskTensor", "dropout": "kDropout"}
SCHEDULE = {1: "kPingPong", 2: "kPinWait", 4: "kStoreBySmem", 8: "kPrefetchQ", 16: "kTmaBias", 32: "kOneKeyTile",
            64: "kFixedMax", 128: "kFirstMax", 256: "kMoreCtas", 512: "2 * kMoreCtas", 1024: "4 * kMoreCtas"}
ROWS = 64  # rows of a consumer warpgroup
LEAST_GAIN = 0.02  # share of the time that another config must save to replace the built-in one
MOST_LOSS = 0.25  # a config that takes this much more time than the best is not worth a row
PADDED = (64, 96, 128, 192, 256)


def padded(dim):
    return next(size for size in PADDED if size >= dim)


def read(text):
    """The comments at the beginning of a file, and its rows with times."""
    lines = text.splitlines()
    comments = [line[1:].strip() for line in lines if line.startswith("#")]
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    return comments, [row for row in rows if row["ms"]]


def members(choice):
    family, *words = choice.split(" ")
    return family, {name: int(value) for name, value in (word.split("=") for word in words)}


def rows_of_cta(row, warpgroups, sms):
    """Rows that the busiest CTA computes, counted like the function of the same name in sm90_forward_tiles.cpp."""
    def rounds_of(groups):
        return int(row["batch"]) * int(row["heads_q"]) * math.ceil(int(row["len_q"]) / (ROWS * groups)) / sms
    rounds = rounds_of(warpgroups)
    if row["causal"] == "0":
        return ROWS * warpgroups * math.ceil(rounds)
    return ROWS * warpgroups * 2 * math.ceil(rounds / 2) if rounds < 4 else ROWS * rounds_of(1)


def relative(problem, sms):
    """The time of each config for a problem, per row of the busiest CTA, relative to the built-in config."""
    times = {}
    for row in problem:
        family, config = members(row["choice"])
        if family != "sm90":
            return {}, None
        per = rows_of_cta(row, config["warpgroups"], sms) if row["direction"] == "forward" else 1
        times[row["choice"]] = float(row["ms"]) / per
    built_in = next(row["choice"] for row in problem if row["verdict"] == "built in")
    return {choice: time / times[built_in] for choice, time in times.items()}, built_in


def chosen(ratios, built_in):
    """The best config for each number of warpgroups, with its time relative to the best of all."""
    ratios = {choice: ratio - LEAST_GAIN * (choice == built_in) for choice, ratio in ratios.items()}
    best = min(ratios.values())
    found = {}
    for choice, ratio in sorted(ratios.items(), key=lambda item: item[1]):
        warpgroups = members(choice)[1]["warpgroups"]
        if warpgroups not in found and ratio <= best * (1 + MOST_LOSS):
            found[warpgroups] = choice, ratio / best
    return list(found.values())


def options_text(options):
    return " | ".join(OPTIONS[name] for name in options.split(","))


def schedule_text(order):
    return " | ".join(name for bit, name in SCHEDULE.items() if order & bit) or "0"


def tables(text):
    comments, rows = read(text)
    device = re.search(r"(\d+) multiprocessors", "\n".join(comments))
    if not device:
        sys.exit("tile_tables: the data does not name a device with its number of multiprocessors")
    sms = int(device.group(1))
    problems = {}
    for row in rows:
        if row["options"] != "none" and "sinks" not in row["options"]:  # kernels do not differ by sinks
            dims = padded(int(row["head_dim"])), padded(int(row["head_dim_v"]))
            problems.setdefault((row["direction"], row["options"], dims, row["causal"] == "1"), []).append(row)
    forward, backward = [], []
    for (direction, options, dims, causal), problem in problems.items():
        ratios, built_in = relative(problem, sms)
        if len(ratios) < 2:
            continue  # nothing was compared
        for choice, ratio in chosen(ratios, built_in):
            config = members(choice)[1]
            head = f"{dims[0]}, {dims[1]}, {options_text(options)}, "
            if direction == "forward":
                forward.append(f"{{{head}{str(causal).lower()}, {config['warpgroups']}, {config['tile_k']}, "
                               f"{config['stages']}, {schedule_text(config['order'])}, {ratio:.3f}}}")
            elif not any(row.startswith("{" + head) for row in backward):
                backward.append(f"{{{head}{config['warpgroups']}, {config['stages']}, {config.get('adds_dq', 0)}}}")
    return comments, forward, backward


def header(text, name):
    comments, forward, backward = tables(text)
    lines = [f"// Written by tools/tile_tables.py from {name}; do not edit."]
    lines += [f"//   {line}" for line in wrapped(comments)]
    lines += ["#pragma once", "", "#include <array>", "", '#include "cuda/families/sm90_measured.h"', "",
              "namespace cuflash::cuda {", "", "// clang-format off"]
    for kind, rows in (("Forward", forward), ("Backward", backward)):
        lines.append(f"inline constexpr std::array<Measured{kind}, {len(rows)}> kMeasured{kind}{{{{")
        lines += [f"    {row}," for row in rows] + ["}};"]
    return "\n".join(lines + ["// clang-format on", "", "}  // namespace cuflash::cuda", ""])


def wrapped(comments):
    for line in comments:
        while len(line) > 110:
            end = line.rfind(" ", 0, 110)
            yield line[:end]
            line = line[end + 1:]
        yield line


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, fail if the tables are not up to date")
    asked = parser.parse_args()
    made = header(DATA.read_text(), DATA.relative_to(ROOT).as_posix())
    if not asked.check:
        TABLES.write_text(made)
    elif TABLES.read_text() != made:
        sys.exit(f"tile_tables: {TABLES.relative_to(ROOT)} is not what {DATA.relative_to(ROOT)} gives; "
                 "run tools/tile_tables.py")


if __name__ == "__main__":
    main()
