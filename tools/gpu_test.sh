#!/usr/bin/env bash
# The tests that need a GPU: tools/gpu_test.sh test|sanitize. Without a GPU it says why and is content.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly bin=build/release/bin
readonly count=${GPU_COUNT:-20000} seed=${GPU_SEED:-1} jobs=${JOBS:-$(nproc)}
# Pairs of head sizes of the random problems: each needs kernels of its own, whose compilation is what takes the time.
readonly head_sizes=${GPU_HEAD_SIZES:-3}

why=$("$bin/cuflash" explain --device cuda | sed -n 's/^not cuda *//p')
if [ -n "$why" ]; then
  echo "gpu-$1: skipped, there is no GPU to test: $why"
  exit 0
fi

test_all() {
  ctest --preset release --label-regex '^gpu$' --parallel "$jobs"
  "$bin/cuflash" check --device cuda --count "$count" --seed "$seed" --head-sizes "$head_sizes"
  if python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
    python3 tests/gpu_large.py build/release/lib/libcuflash.so
  else
    echo "gpu-test: large problems skipped, python3 has no PyTorch that sees the GPU"
  fi
  JOBS=$jobs tools/python_test.sh cuda
}

# A reduced suite: tools slow kernels down by 10 to 100 times. Each tensor is an allocation of its own, so that memcheck
# sees what is read beyond its end.
sanitize() {
  local sanitizer tool
  sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null || true)
  if [ -z "$sanitizer" ]; then
    echo "gpu-sanitize: compute-sanitizer is neither in PATH nor in /usr/local/cuda/bin; it comes with the CUDA toolkit" >&2
    exit 1
  fi
  export CUFLASH_CHECK_ELEMENTS_ONLY=1 CUFLASH_TEST_DEVICE=cuda CUFLASH_TEST_SCALE=0.02
  # Kernels are compiled beforehand: NVRTC under a sanitizer is slow, and not what is tested.
  "$bin/cuflash" check --device cuda --count "${SANITIZE_COUNT:-150}" --seed "$seed" --head-sizes 2
  for tool in memcheck racecheck initcheck synccheck; do
    echo "gpu-sanitize: $tool"
    "$sanitizer" --tool "$tool" --error-exitcode 86 --print-limit 20 \
      "$bin/cuflash" check --device cuda --count "${SANITIZE_COUNT:-150}" --seed "$seed" --head-sizes 2 --threads 4
  done
  for tests in gpu_calls_test regressions_lengths_test regressions_shapes_test; do
    echo "gpu-sanitize: memcheck of $tests"
    "$sanitizer" --tool memcheck --error-exitcode 86 --print-limit 20 "$bin/$tests" --gtest_brief=1
  done
}

case $1 in
  test) test_all ;;
  sanitize) sanitize ;;
  *)
    echo "gpu_test.sh: '$1' must be test or sanitize" >&2
    exit 2
    ;;
esac
