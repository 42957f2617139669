#!/usr/bin/env bash
# Runs a benchmark (the first argument) with a Python that has PyTorch: the current one, or a virtual environment in the
# build folder. Further arguments go to the benchmark.
set -euo pipefail
cd "$(dirname "$0")/.."

torch_version=2.10.0  # on aarch64 the last series whose PyPI wheel is for the CPU alone, 146 MB
venv=build/bench-python

has_torch() { "$1" -c 'import torch' 2>/dev/null; }

python=python3
if ! has_torch "$python"; then
  python=$venv/bin/python
  if ! has_torch "$python"; then
    if [ "$(uname -m)" != aarch64 ]; then
      echo "bench: PyTorch is not installed for python3; install a CPU build of it to compare with (its default x86-64" \
        "wheel carries gigabytes of CUDA libraries, so this script does not)" >&2
      exit 1
    fi
    echo "bench: installing torch $torch_version into $venv (about 146 MB)"
    python3 -m venv "$venv"
    "$python" -m pip install --quiet "torch==$torch_version" numpy
  fi
fi
benchmark=$1
shift
exec "$python" "$benchmark" build/release/lib/libcuflash.so "$@"
