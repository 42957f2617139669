#!/usr/bin/env python3
"""Shows that the tests have teeth: plants each fault of faults.py in a copy of the tree, one at a time, and runs tests
until one fails. A fault that no test notices, that cannot be placed or that does not compile makes this fail."""

import argparse
import concurrent.futures
import os
import pathlib
import queue
import re
import subprocess
import sys
import time

from fault import Fault
from faults import FAULTS

ROOT = pathlib.Path(__file__).resolve().parent.parent
COPIED = ["CMakeLists.txt", "cmake", "include", "src", "kernels", "reference", "check", "files", "machine", "cli", "bench/shared", "tests",
          "fuzz"]

# Broad tests first: a fault is caught by the first that fails, so few reach the end of the list.
EARLY_TESTS = ["sweep_test", "sweep_cache_test", "regressions_", "properties_"]
# They look at other code than src/, or need a GPU.
SKIPPED_TESTS = ("cli_test", "npy_test", "compare_test", "reference_test", "reference_cache_test", "gpu_")

TEST_ENVIRONMENT = {"RC_PARAMS": "noshrink=1", "CUFLASH_TEST_SCALE": "0.3"}
TEST_TIMEOUT_S = 300


def files_of(path: pathlib.Path) -> list[pathlib.Path]:
    return [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]


class Trial:
    """A copy of the tree with its own build directory."""

    def __init__(self, directory: pathlib.Path, jobs: int):
        self.tree = directory / "tree"
        self.build_dir = directory / "build"
        self.jobs = str(jobs)
        self.synchronise()

    def synchronise(self) -> None:
        """Only files that differ are written: what an earlier run built stays of use, what it left planted does not."""
        wanted = {path.relative_to(ROOT) for name in COPIED for path in files_of(ROOT / name)}
        for path in wanted:
            contents = (ROOT / path).read_bytes()
            copy = self.tree / path
            if not copy.is_file() or copy.read_bytes() != contents:
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(contents)
        for copy in files_of(self.tree):
            if copy.relative_to(self.tree) not in wanted:
                copy.unlink()

    def configure(self) -> None:
        off = ["CUFLASH_WERROR", "CUFLASH_BUILD_CLI", "CUFLASH_BUILD_EXAMPLES", "CUFLASH_BUILD_BENCH"]
        command = ["cmake", "-S", self.tree, "-B", self.build_dir, "-DCMAKE_BUILD_TYPE=Release",
                   *(f"-D{option}=OFF" for option in off)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    def tests(self, first: str) -> list[str]:
        order = [first, *EARLY_TESTS]
        rank = lambda name: next((n for n, start in enumerate(order) if name.startswith(start)), len(order))
        names = sorted(path.stem for path in (self.tree / "tests").rglob("*_test.cpp"))
        return sorted((name for name in names if not name.startswith(SKIPPED_TESTS)), key=rank)

    def build(self, target: str) -> str:
        """Compiler output where the target does not build, else nothing."""
        command = ["cmake", "--build", self.build_dir, "--parallel", self.jobs, "--target", target]
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        return result.stdout if result.returncode else ""

    def environment(self, test: str) -> dict[str, str]:
        """Tests on fake GPUs find a driver that does not exist, as ctest lets them."""
        fake = self.build_dir / "tests" / "fake_cuda"
        fakes = {"LD_LIBRARY_PATH": str(fake), "CUFLASH_CACHE_DIR": str(fake / "cache"), "CUFLASH_TEST_DEVICE": "cuda"}
        return {**os.environ, **TEST_ENVIRONMENT, **(fakes if test.startswith("fake_cuda_") else {})}

    def failure(self, test: str) -> str:
        """The name of the test case that failed, else nothing."""
        command = [self.build_dir / "bin" / test, "--gtest_fail_fast", "--gtest_brief=1"]
        try:
            result = subprocess.run(command, cwd=self.build_dir, env=self.environment(test), check=False,
                                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                                    timeout=TEST_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return f"{test} (did not end within {TEST_TIMEOUT_S} s)"
        if result.returncode == 0:
            return ""
        found = re.search(r"\[  FAILED  \] ([\w./]+)", result.stdout)
        return f"{test} {found[1]}" if found else f"{test} (ended with status {result.returncode})"

    def first_failure(self, first: str) -> str:
        for test in self.tests(first):
            output = self.build(test)
            if output:
                raise RuntimeError(f"{test} does not build:\n{output}")
            failed = self.failure(test)
            if failed:
                return failed
        return ""


class Planted:
    """The fault is in the file inside the with block, and gone after it."""

    def __init__(self, path: pathlib.Path, fault: Fault):
        self.path = path
        self.fault = fault

    def __enter__(self):
        self.original = self.path.read_text(encoding="utf-8")
        self.path.write_text(planted_text(self.original, self.fault), encoding="utf-8")

    def __exit__(self, *_):
        self.path.write_text(self.original, encoding="utf-8")


def planted_text(text: str, fault: Fault) -> str:
    count = text.count(fault.find)
    if count != 1:
        raise ValueError(f"the text to replace occurs {count} times instead of once: {fault.find!r}")
    return text.replace(fault.find, fault.replace)


def misplaced(faults: list[tuple[str, Fault]]) -> list[str]:
    errors = []
    for file, fault in faults:
        try:
            planted_text((ROOT / file).read_text(encoding="utf-8"), fault)
        except (ValueError, OSError) as error:
            errors.append(f"{file}, {fault.name}: {error}")
    return errors


def try_fault(trial: Trial, file: str, fault: Fault) -> tuple[str, str]:
    with Planted(trial.tree / file, fault):
        try:
            caught_by = trial.first_failure(fault.first_test)
        except RuntimeError as error:
            return "BROKEN", str(error)
    return ("caught", caught_by) if caught_by else ("MISSED", "no test noticed")


def try_all(trials: list[Trial], faults: list[tuple[str, Fault]]) -> bool:
    """Each trial takes the next fault. The first one runs every test without a fault before that."""
    waiting = queue.SimpleQueue()
    for fault in faults:
        waiting.put(fault)
    numbers = iter(range(1, len(faults) + 1))
    sound = True

    def work(trial: Trial) -> int:
        nonlocal sound
        if trial is trials[0]:
            print("building and testing a copy without a fault ...", flush=True)
            failed = trial.first_failure(EARLY_TESTS[0])
            if failed:
                sound = False
                print(f"the tests must pass without a fault, but {failed} failed", file=sys.stderr, flush=True)
        caught = 0
        while sound:
            try:
                file, fault = waiting.get_nowait()
            except queue.Empty:
                break
            began = time.monotonic()
            outcome, detail = try_fault(trial, file, fault)
            caught += outcome == "caught"
            took = time.monotonic() - began
            print(f"[{next(numbers):3}/{len(faults)}] {outcome:6} {fault.name:44} {detail} ({took:.0f} s)", flush=True)
        return caught

    with concurrent.futures.ThreadPoolExecutor(len(trials)) as pool:
        caught = sum(pool.map(work, trials))
    print(f"{caught} of {len(faults)} faults caught")
    return sound and caught == len(faults)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="only faults whose name contains this text")
    parser.add_argument("--list", action="store_true", help="list the faults and check that each can be placed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="parallel compilations")
    parser.add_argument("--copies", type=int, default=1, help="faults tried at the same time, each in a copy of the tree")
    parser.add_argument("--directory", type=pathlib.Path, default=ROOT / "build" / "teeth", help="place for the copies")
    arguments = parser.parse_args()

    faults = [(file, fault) for file, group in FAULTS.items() for fault in group if arguments.only in fault.name]
    errors = misplaced(faults)
    print(*errors, sep="\n", end="\n" if errors else "", file=sys.stderr)
    if errors or not faults:
        return 1
    if arguments.list:
        for file, fault in faults:
            print(f"{file:28} {fault.name}")
        return 0
    jobs = max(1, arguments.jobs // arguments.copies)
    trials = [Trial(arguments.directory / str(n), jobs) for n in range(max(1, arguments.copies))]
    for trial in trials:
        trial.configure()
    return 0 if try_all(trials, faults) else 1


if __name__ == "__main__":
    sys.exit(main())
