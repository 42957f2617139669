#!/usr/bin/env bash
# Runs the tests that need a GPU: tools/gpu_test.sh test|sanitize. Without a GPU it says why they do not run, and
# succeeds.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly mode=${1:-} bin=build/release/bin
readonly logs=build/gpu-$mode
readonly count=${GPU_COUNT:-20000} seed=${GPU_SEED:-1} jobs=${JOBS:-$(nproc)}
# The number of sets of types, head sizes and options among the random problems. Each set compiles other kernels, which
# takes most of the time.
readonly kernel_sets=${GPU_KERNEL_SETS:-12}

say() { printf 'gpu-%s: %s\n' "$mode" "$*"; }

# The parts that run in parallel; each has a log in build/gpu-test or build/gpu-sanitize.
names=() patterns=() pids=()
trap 'jobs -p | xargs -r kill 2>/dev/null' EXIT # ends the parts that still run if this is interrupted
start() { # name, pattern of the lines with the result, command...
  names+=("$1") patterns+=("$2")
  "${@:3}" >"$logs/$1.log" 2>&1 &
  pids+=($!)
}
# Waits for all parts. Shows the lines with the result of each, and the whole log of one that failed or has no such
# line.
finish() {
  local n log result failed=0
  for n in "${!names[@]}"; do
    log=$logs/${names[n]}.log result=0
    wait "${pids[n]}" || result=$?
    if [ "$result" -ne 0 ] || ! grep -q -e "${patterns[n]}" "$log"; then
      failed=1
      cat "$log"
      say "${names[n]}: FAILED with status $result"
    fi
    grep -e "${patterns[n]}" "$log" | sed "s/^=* */gpu-$mode: ${names[n]}: /" || true
  done
  names=() patterns=() pids=()
  return "$failed"
}

test_all() {
  start ctest 'tests passed\|Skipped\|Not Run' ctest --preset release --label-regex '^gpu$' --parallel "$jobs"
  local check=("$bin/cuflash" check --device cuda --count "$count" --seed "$seed" --kernel-sets "$kernel_sets")
  start check oracle "${check[@]}"
  start check-plain oracle "${check[@]}" --plain
  start check-options oracle "${check[@]}" --options
  start check-cache oracle "${check[@]}" --cache
  finish
  # These two run after the others: the package is built in the folder where ctest runs, and GPU memory suffices for one
  # set of large problems.
  if python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
    start large 'large problems' python3 tests/gpu/gpu_large.py build/release/lib/libcuflash.so
  else
    say "large problems skipped, python3 has no PyTorch that sees the GPU"
  fi
  start python '^python-test:' env JOBS="$jobs" tools/python_test.sh cuda
  finish
}

# Runs a reduced suite, since the tools slow kernels down by 10 to 100 times. Each tensor is a separate allocation, so
# that memcheck sees reads beyond its end.
sanitize() {
  local sanitizer tool tests kind threads
  local check=("$bin/cuflash" check --device cuda --count "${SANITIZE_COUNT:-150}" --seed "$seed")
  # check: problems of all kinds; plain and options: problems for the fastest kernels; cache: calls over a KV cache.
  local -A kinds=([check]="--head-sizes 2" [plain]="--plain --head-sizes 0" [options]="--options --head-sizes 1"
    [cache]="--cache --head-sizes 2")
  sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null || true)
  if [ -z "$sanitizer" ]; then
    say "compute-sanitizer is neither in PATH nor in /usr/local/cuda/bin; it comes with the CUDA toolkit" >&2
    exit 1
  fi
  export CUFLASH_CHECK_ELEMENTS_ONLY=1 CUFLASH_TEST_DEVICE=cuda CUFLASH_TEST_SCALE=0.02
  local suites=(gpu_calls_test regressions_lengths_test regressions_shapes_test)
  # Everything runs without a tool first, which leaves compiled kernels on disk: NVRTC takes minutes under a sanitizer.
  # shellcheck disable=SC2086 # a list of words
  for kind in "${!kinds[@]}"; do start "$kind" oracle "${check[@]}" ${kinds[$kind]}; done
  for tests in "${suites[@]}"; do start "$tests" PASSED "$bin/$tests" --gtest_brief=1; done
  finish
  under() { start "$2" SUMMARY: "$sanitizer" --tool "$1" --error-exitcode 86 --print-limit 20 "${@:3}"; }
  for tool in memcheck racecheck initcheck synccheck; do
    # Threads have separate streams and share a memory pool, in which initcheck loses track of what was written.
    threads=4
    [ "$tool" != initcheck ] || threads=1
    # shellcheck disable=SC2086
    for kind in "${!kinds[@]}"; do under "$tool" "$tool-$kind" "${check[@]}" ${kinds[$kind]} --threads "$threads"; done
  done
  for tests in "${suites[@]}"; do under memcheck "memcheck-$tests" "$bin/$tests" --gtest_brief=1; done
  finish
}

case $mode in
  test | sanitize) ;;
  *)
    echo "gpu_test.sh: '$mode' must be test or sanitize" >&2
    exit 2
    ;;
esac
why=$("$bin/cuflash" explain --device cuda | sed -n 's/^not cuda *//p')
if [ -n "$why" ]; then
  say "skipped, there is no GPU to test: $why"
  exit 0
fi
mkdir -p "$logs"
if [ "$mode" = test ]; then test_all; else sanitize; fi
