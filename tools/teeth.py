#!/usr/bin/env python3
"""Shows that the tests have teeth: plants each fault of faults.py in a copy of the tree, one at a time, and runs tests
until one fails. It fails if a fault is noticed by no test, cannot be planted or does not compile."""

import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import time

from fault import Fault
from faults import FAULTS

ROOT = pathlib.Path(__file__).resolve().parent.parent
COPIED = ["CMakeLists.txt", "cmake", "include", "src", "kernels", "reference", "check", "files", "machine", "cli", "bench/shared", "tests",
          "fuzz"]

# Broad tests come first: the first failing test ends a trial, so few trials reach the end of the list.
EARLY_TESTS = ["sweep_test", "sweep_cache_test", "regressions_", "properties_"]
# These test other code than src/, or need a GPU.
SKIPPED_TESTS = ("cli_test", "npy_test", "compare_test", "reference_test", "reference_cache_test", "gpu_")

# The tests must not see this machine's tuned choices or its GPU.
TEST_ENVIRONMENT = {"RC_PARAMS": "noshrink=1", "CUFLASH_TEST_SCALE": "0.3", "CUFLASH_TUNED": "off",
                    "CUDA_VISIBLE_DEVICES": "-1"}
TEST_TIMEOUT_S = 120

# Runs a command in a mount namespace in which directory $1 is at the path $2.
ELSEWHERE = ["unshare", "--mount", "sh", "-c", 'mount --bind "$1" "$2" && cd "$2" && shift 2 && exec "$@"', "sh"]


def files_of(path: pathlib.Path) -> list[pathlib.Path]:
    return [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]


class Trial:
    """A copy of the tree with its own build directory.

    Build files contain absolute paths, so a copy of a build works only for commands that see it at the original's path:
    they run in a mount namespace."""

    def __init__(self, directory: pathlib.Path, jobs: int, original: pathlib.Path | None = None):
        self.tree = directory / "tree"
        self.build_dir = (original or directory) / "build"
        self.prefix = [*ELSEWHERE, directory, original] if original else []
        self.jobs = str(jobs)
        if not original:
            self.synchronise()

    def run(self, command: list, **arguments) -> subprocess.CompletedProcess:
        directory = None if self.prefix else self.build_dir
        return subprocess.run([*self.prefix, *command], cwd=directory, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace", check=False, **arguments)

    def synchronise(self) -> None:
        """Copies the files that differ, which keeps the objects of an earlier run usable and removes planted faults."""
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
        # CMake compiles the loops over tiles with -O3 in any case; the rest should compile fast.
        command = ["cmake", "-S", self.tree, "-B", self.build_dir, "-DCMAKE_BUILD_TYPE=Release",
                   "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG", *(f"-D{option}=OFF" for option in off)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    def tests(self, first: str) -> list[str]:
        order = [first, *EARLY_TESTS]
        rank = lambda name: next((n for n, start in enumerate(order) if name.startswith(start)), len(order))
        names = sorted(path.stem for path in (self.tree / "tests").rglob("*_test.cpp"))
        return sorted((name for name in names if not name.startswith(SKIPPED_TESTS)), key=rank)

    def build(self, *targets: str) -> str:
        """The compiler's output if a target does not build, otherwise an empty string."""
        result = self.run(["cmake", "--build", self.build_dir, "--parallel", self.jobs, "--target", *targets])
        return result.stdout if result.returncode else ""

    def environment(self, test: str) -> dict[str, str]:
        """The environment of a test, which includes the fake driver for tests on fake GPUs, as under ctest."""
        fake = self.build_dir / "tests" / "fake_gpu"
        fakes = {"LD_LIBRARY_PATH": str(fake), "CUFLASH_CACHE_DIR": str(fake / "cache"), "CUFLASH_TEST_DEVICE": "cuda"}
        return {**os.environ, **TEST_ENVIRONMENT, **(fakes if test.startswith("fake_gpu_") else {})}

    def failure(self, test: str) -> str:
        """The name of the test case that failed, otherwise an empty string."""
        command = [self.build_dir / "bin" / test, "--gtest_fail_fast", "--gtest_brief=1"]
        try:
            result = self.run(command, env=self.environment(test), timeout=TEST_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return f"{test} (did not end within {TEST_TIMEOUT_S} s)"
        if result.returncode == 0:
            return ""
        found = re.search(r"\[  FAILED  \] ([\w./]+)", result.stdout)
        return f"{test} {found[1]}" if found else f"{test} (ended with status {result.returncode})"

    def first_failure(self, first: str, ignored: set[str] = frozenset()) -> str:
        for test in self.tests(first):
            if test in ignored:
                continue
            output = self.build(test)
            if output:
                errors = [line for line in output.splitlines() if "error" in line.lower()] or output.splitlines()
                raise RuntimeError(f"{test} does not build: {errors[0]}")
            failed = self.failure(test)
            if failed:
                return failed
        return ""


class Planted:
    """Plants a fault in its file for the duration of a with block."""

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


def processor_features() -> set[str]:
    info = pathlib.Path("/proc/cpuinfo")
    text = info.read_text(encoding="utf-8") if info.is_file() else ""
    return {word for line in text.splitlines() if line.startswith(("flags", "Features")) for word in line.split()}


def try_fault(trial: Trial, file: str, fault: Fault, ignored: set[str]) -> tuple[str, str]:
    with Planted(trial.tree / file, fault):
        try:
            caught_by = trial.first_failure(fault.first_test, ignored)
        except RuntimeError as error:
            return "BROKEN", str(error)
    return ("caught", caught_by) if caught_by else ("MISSED", "no test noticed")


class Waiting:
    """The faults that are not tried yet. A trial stays with one file, so that it rebuilds only what depends on that
    file."""

    def __init__(self, faults: list[tuple[str, Fault]]):
        self.lock = threading.Lock()
        self.files: dict[str, list[Fault]] = {}
        for file, fault in faults:
            self.files.setdefault(file, []).append(fault)
        # The slowest come first: faults that make tests hang, and faults in headers, which rebuild much.
        is_header = lambda file: file.startswith("src/") and file.endswith(".h")
        order = lambda file: ("/threads/" not in file, not is_header(file), -len(self.files[file]))
        self.untouched = sorted(self.files, key=order)

    def take(self, file: str) -> tuple[str, Fault] | None:
        """The next fault: of this file if one is left, otherwise of an untouched file, or of the one with the most
        left."""
        with self.lock:
            if not self.files.get(file):
                if self.untouched:
                    file = self.untouched.pop(0)
                else:
                    file = max(self.files, key=lambda name: len(self.files[name]))
            return (file, self.files[file].pop(0)) if self.files[file] else None

    def left(self) -> list[str]:
        return [fault.name for faults in self.files.values() for fault in faults]


def try_all(trials: list[Trial], faults: list[tuple[str, Fault]], seconds: float) -> bool:
    """Lets each trial take one fault after the other. The first trial begins by running every test without a fault."""
    waiting = Waiting(faults)
    failing: set[str] = set()  # tests that fail without a fault, and therefore catch nothing
    caught_by: list[str] = []
    numbers = iter(range(1, len(faults) + 1))
    began = time.monotonic()

    def test_without_fault(trial: Trial) -> None:
        print("testing a copy without a fault ...", flush=True)
        while failed := trial.first_failure(EARLY_TESTS[0], failing):
            failing.add(failed.split()[0])
            print(f"the tests must pass without a fault, but {failed} failed", flush=True)
        print(f"{len(failing)} tests failed without a fault ({time.monotonic() - began:.0f} s)", flush=True)

    def work(trial: Trial) -> None:
        if trial is trials[0]:
            test_without_fault(trial)
        file = ""
        while time.monotonic() - began < seconds and (taken := waiting.take(file)):
            file, fault = taken
            start = time.monotonic()
            outcome, detail = try_fault(trial, file, fault, failing)
            if outcome == "caught":
                caught_by.append(detail.split()[0])
            took = time.monotonic() - start
            print(f"[{next(numbers):3}/{len(faults)}] {outcome:6} {fault.name:44} {detail} ({took:.0f} s)", flush=True)

    with concurrent.futures.ThreadPoolExecutor(len(trials)) as pool:
        list(pool.map(work, trials))
    for name in waiting.left():
        print(f"not tried: {name}")
    caught = sum(test not in failing for test in caught_by)
    print(f"{caught} of {len(faults)} faults caught, {len(waiting.left())} not tried")
    return not failing and caught == len(faults)


def make_trials(directory: pathlib.Path, copies: int, jobs: int) -> list[Trial]:
    """Builds the first trial with all jobs and copies it for the others, if this system has mount namespaces."""
    each = max(1, jobs // copies)
    first = Trial(directory / "0", jobs)
    first.configure()
    print("building a copy without a fault ...", flush=True)
    began = time.monotonic()
    output = first.build(*first.tests(EARLY_TESTS[0]))
    if output:
        sys.exit(f"a copy without a fault does not build:\n{output}")
    print(f"built in {time.monotonic() - began:.0f} s", flush=True)
    first.jobs = str(each)
    others = [directory / str(n) for n in range(1, copies)]
    if others and subprocess.run([*ELSEWHERE, directory / "0", directory / "0", "true"], check=False).returncode == 0:
        for other in others:
            shutil.rmtree(other, ignore_errors=True)
            subprocess.run(["cp", "-a", directory / "0", other], check=True)
        return [first, *(Trial(other, each, directory / "0") for other in others)]
    trials = [first, *(Trial(other, each) for other in others)]
    for trial in trials[1:]:
        trial.configure()
    return trials


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="only faults whose name contains this text")
    parser.add_argument("--list", action="store_true", help="list the faults and check that each can be placed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="parallel compilations")
    parser.add_argument("--copies", type=int, default=1, help="faults tried at the same time, each in a copy of the tree")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop taking faults after this time")
    parser.add_argument("--except", dest="done", type=pathlib.Path,
                        help="output of an earlier run, whose caught faults are left out")
    parser.add_argument("--directory", type=pathlib.Path, default=ROOT / "build" / "teeth", help="place for the copies")
    arguments = parser.parse_args()

    faults = [(file, fault) for file, group in FAULTS.items() for fault in group if arguments.only in fault.name]
    if arguments.done:
        done = arguments.done.read_text(encoding="utf-8")
        faults = [(file, fault) for file, fault in faults if f"caught {fault.name:44} " not in done]
    errors = misplaced(faults)
    print(*errors, sep="\n", end="\n" if errors else "", file=sys.stderr)
    if errors or not faults:
        return 1
    if arguments.list:
        for file, fault in faults:
            print(f"{file:28} {fault.name}")
        return 0
    features = processor_features()
    reached = lambda fault: not fault.needs or bool(features.intersection(fault.needs.split("|")))
    for _, fault in faults:
        if not reached(fault):
            print(f"not tried on this processor: {fault.name} (needs {fault.needs})")
    faults = [(file, fault) for file, fault in faults if reached(fault)]
    trials = make_trials(arguments.directory.resolve(), max(1, arguments.copies), arguments.jobs)
    return 0 if try_all(trials, faults, arguments.seconds) else 1


if __name__ == "__main__":
    sys.exit(main())
