#!/usr/bin/env bash
# Runs one small problem for each kind of kernel (tests/gpu/gpu_kernels_test.cpp) under the tools of compute-sanitizer,
# in parallel:
#   tools/gpu_sanitize.sh FOLDER [SECONDS]
# FOLDER gets a log of every run. After SECONDS (120) the running ones are ended, and the others are left out. The
# output ends with one line for each run. `make gpu-sanitize` runs random problems instead and takes much longer.
#
#   SANITIZER_TOOLS    tools to run (racecheck memcheck synccheck)
#   KERNEL_TESTS       names of tests (all)
#   JOBS               runs at a time (the number of processors)
#   COMPUTE_SANITIZER  path of the program, if it is neither in PATH nor in /usr/local/cuda/bin
set -euo pipefail

if [ $# -lt 1 ] || [ $# -gt 2 ]; then
  echo "usage: tools/gpu_sanitize.sh FOLDER [SECONDS]" >&2
  exit 2
fi
mkdir -p "$1"
folder=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
tests=${GPU_KERNELS_TEST:-build/release/bin/gpu_kernels_test}
sanitizer=${COMPUTE_SANITIZER:-$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)}
if [ ! -x "$sanitizer" ]; then
  echo "gpu-sanitize: compute-sanitizer is neither in PATH nor in /usr/local/cuda/bin; it comes with the CUDA toolkit" >&2
  exit 1
fi
deadline=$(($(date +%s) + ${2:-120}))
readonly folder tests sanitizer deadline jobs=${JOBS:-$(nproc)}
export folder tests sanitizer deadline
# Every tensor is a separate allocation, so that memcheck sees reads beyond its end.
export CUFLASH_CHECK_ELEMENTS_ONLY=1 CUFLASH_TEST_DEVICE=cuda CUFLASH_TUNED=off

first_report() { # log: the first fault that a tool reports, and its location
  { grep -A 4 -m 1 '========= \(Error\|Warning\|Invalid\|Barrier\|Uninitialized\)' "$1" || true; } |
    sed 's/^========= */; /' | tr -d '\n'
}
run() { # tool or plain, test
  local name=$1-$2 status=0 before left command=()
  local log=$folder/$name.log
  before=$(date +%s)
  left=$((deadline - before))
  if [ "$left" -le 0 ]; then
    echo "$name: not run, the time is over" >"$folder/$name.line"
    return
  fi
  [ "$1" = plain ] || command=("$sanitizer" --tool "$1" --error-exitcode 86 --print-limit 50)
  timeout --foreground --kill-after=5 "$left" "${command[@]}" "$tests" --gtest_brief=1 \
    --gtest_filter="KernelsOnGpu.$2" >"$log" 2>&1 || status=$?
  local how
  how=$(grep -o 'SUMMARY: .*\|\[  PASSED  \].*' "$log" | tail -n 1) || true
  if grep -q 'no GPU for this test' "$log"; then how="not run, there is no GPU"; fi
  [ "$status" -ne 124 ] && [ "$status" -ne 137 ] || how="ended by the time limit"
  [ "$status" -eq 0 ] || how="FAILED with status $status, see $log: $how$(first_report "$log")"
  echo "$name: ${how:-no summary}, $(($(date +%s) - before)) s" >"$folder/$name.line"
}
export -f run first_report

rm -f "$folder"/*.line
read -ra names <<<"${KERNEL_TESTS:-$("$tests" --gtest_list_tests | sed -n 's/^  //p' | tr '\n' ' ')}"
read -ra tools <<<"${SANITIZER_TOOLS:-racecheck memcheck synccheck}"
all() { # tools...: every test with each tool, one tool after the other
  local tool name
  for tool; do
    for name in "${names[@]}"; do echo "$tool $name"; done
  done | xargs -P "$jobs" -L 1 bash -c 'run "$@"' run
}
all plain # leaves compiled kernels on disk: NVRTC would take minutes under a tool
all "${tools[@]}"
# The runs without a tool come first: a test that fails there says nothing about the tools.
for tool in plain "${tools[@]}"; do
  for name in "${names[@]}"; do sed 's/^/gpu-sanitize: /' "$folder/$tool-$name.line"; done
done
if grep -q 'FAILED\|no summary\|not run' "$folder"/*.line; then exit 1; fi
