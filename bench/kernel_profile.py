"""Profiles every GPU kernel with ncu: use of warps, tensor cores, issue slots, shared memory, caches and memory.

    python bench/kernel_profile.py LIB [--kernels best,portable] [--calls forward,backward,decode] [--length 8192]

The program runs itself under ncu (part of the CUDA toolkit; needs permission to read counters), once for each family of
kernels, and prints a Markdown table. It makes each call once, with 16,384 tokens and a hidden size of 2,048; kernels
have the names that explain prints. Caches are cold, and clocks are not locked.
"""

import argparse
import csv
import os
import shutil
import subprocess
import sys
import tempfile

METRICS = {  # column: metric, and the divisor that gives the unit of the column
    "us": ("gpu__time_duration.sum", 1e3),
    "registers": ("launch__registers_per_thread", 1),
    "shared KB": ("launch__shared_mem_per_block_dynamic", 1e3),
    "warps": ("sm__warps_active.avg.per_cycle_active", 1),
    "most warps": ("sm__maximum_warps_per_active_cycle_pct", 100 / 64),
    "tensor": ("sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed", 1),
    "issue": ("smsp__issue_active.avg.pct_of_peak_sustained_active", 1),
    "shared": ("l1tex__data_pipe_lsu_wavefronts_mem_shared.avg.pct_of_peak_sustained_elapsed", 1),
    "L2": ("lts__throughput.avg.pct_of_peak_sustained_elapsed", 1),
    "DRAM": ("dram__throughput.avg.pct_of_peak_sustained_elapsed", 1),
    "GHz": ("sm__cycles_elapsed.avg.per_second", 1e9),
}
SHARES, WHOLE = {"tensor", "issue", "shared", "L2", "DRAM"}, {"registers", "most warps"}


def attention_calls(library, direction, length):
    from cuda_torch import DTYPES, Problem
    for dtype, dims in (("bf16", (64, 128, 256)), ("f32", (64, 128))):
        for dim in dims:
            for causal in (False, True):
                problem = Problem(DTYPES[dtype], dim, length, causal)
                problem.o.normal_(), problem.lse.fill_(9)  # backward reads them
                yield f"{direction} {dtype} D={dim}{' causal' if causal else ''}", problem.ours(library, direction)


def decode_calls(library):
    import torch
    heads, heads_k, dim = 32, 8, 128
    for batch, length, queries in ((128, 8192, 1), (16, 8192, 1), (16, 8192, 32), (1, 8192, 1)):
        make = lambda rows, heads: torch.randn((batch, rows, heads, dim), device="cuda", dtype=torch.bfloat16)
        q, k, v = make(queries, heads), make(length, heads_k), make(length, heads_k)
        lengths, o = torch.full((batch,), length, dtype=torch.int32, device="cuda"), torch.empty_like(q)
        yield (f"decode bf16 D={dim} B={batch} Sk={length} Sq={queries}",
               library.attend_cache(*(t.transpose(1, 2) for t in (q, k, v)), lengths, o.transpose(1, 2)))


def make_calls(arguments):
    """Runs in the process that ncu profiles: announces the kernels, then makes the calls."""
    import torch
    from cuflash_c import Library
    library = Library(os.path.abspath(arguments.lib))
    for kind in arguments.calls.split(","):
        calls = decode_calls(library) if kind == "decode" else attention_calls(library, kind, arguments.length)
        for name, call in calls:
            for line in call.explain().splitlines():
                if line.startswith("kernel "):
                    print(name, line.split()[1].split(":")[0], sep="\t", flush=True)
            call()
            torch.cuda.synchronize()


def measured(text):
    """Parses ncu's table, whose first row has the units, into one dictionary for each kernel."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    return list(csv.DictReader(lines))[1:]


def cell(column, row):
    metric, unit = METRICS[column]
    value = float(row[metric].replace(",", "")) / unit
    if column in SHARES:
        return f"{value:.1f}%"
    return f"{value:.0f}" if column in WHOLE else f"{value:.2f}" if column == "GHz" else f"{value:.1f}"


def profile(arguments, kernels):
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "ncu.csv")
        command = ["ncu", "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none", "--log-file", log,
                   "--kernel-name", "cuflash_kernel", "--metrics", ",".join(metric for metric, _ in METRICS.values()),
                   sys.executable, __file__, arguments.lib, "--watched", "--calls", arguments.calls,
                   "--length", str(arguments.length)]
        done = subprocess.run(command, env={**os.environ, "CUFLASH_CUDA_KERNELS": kernels}, stdout=subprocess.PIPE, text=True)
        with open(log, encoding="utf-8") as file:
            text = file.read()
    announced = [line.split("\t") for line in done.stdout.splitlines() if "\t" in line]
    rows = measured(text)
    if done.returncode != 0 or len(rows) != len(announced) or not rows:
        sys.exit(f"ncu ended with status {done.returncode} and {len(rows)} kernels of {len(announced)}:\n{text[-2000:]}")
    for (name, kernel), row in zip(announced, rows):
        print(f"| {name} | {kernel} | " + " | ".join(cell(column, row) for column in METRICS) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lib", metavar="LIB")
    parser.add_argument("--kernels", default="best,portable", help="families of kernels, as in CUFLASH_CUDA_KERNELS")
    parser.add_argument("--calls", default="forward,backward,decode")
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--watched", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.watched:
        return make_calls(arguments)
    if not shutil.which("ncu"):
        sys.exit("ncu is not in the PATH; it comes with the CUDA toolkit")
    for kernels in arguments.kernels.split(","):
        print(f"\n{kernels} kernels\n\n| call | kernel | " + " | ".join(METRICS) + " |")
        print("|" + "---|" * (2 + len(METRICS)), flush=True)
        profile(arguments, kernels)


if __name__ == "__main__":
    main()
