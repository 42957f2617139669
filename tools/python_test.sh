#!/usr/bin/env bash
# The Python tests: tools/python_test.sh cpu|cuda [arguments of pytest]
#
# cpu   in a virtual environment under build/, with the package installed by `pip install .` and what the tests need
#       from PyPI. Without a network what is importable is used. CUFLASH_TEST_PYTHON=required: skipping is a failure.
# cuda  with the Python at hand and the package of the release build: nothing is installed.
# PYTHON names another Python than python3. CUFLASH_TEST_TORCH=install: PyTorch from PyPI, however large it is there.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly device=$1 python=${PYTHON:-python3} venv=build/python-test
readonly torch_version=2.9.1 # on aarch64 for the CPU alone, 104 MB
readonly requirements=tests/python/requirements.txt
shift

say() { printf 'python-test: %s\n' "$*"; }
skip() {
  say "SKIPPED: $*"
  [ "${CUFLASH_TEST_PYTHON:-}" != required ] || exit 1
  exit 0
}
has() { "$1" -c "import $2" 2>/dev/null; }
timed() { # words, command...
  local began=$SECONDS words=$1
  shift
  "$@" || return
  say "$words in $((SECONDS - began)) s"
}
pip() { "$venv/bin/python" -m pip --quiet --disable-pip-version-check "$@"; }

# The package of the release build, whose objects are there already. Needs nanobind, and no network.
build_package() {
  local folder=build/release
  cmake --preset release --log-level=NOTICE -DCUFLASH_BUILD_PYTHON=ON \
    -DPython_EXECUTABLE="$(command -v "$1")" >/dev/null
  cmake --build "$folder" --parallel "${JOBS:-$(nproc)}" --target cuflash_python cuflash_python_files >/dev/null
  export PYTHONPATH=$PWD/$folder/python${PYTHONPATH:+:$PYTHONPATH}
}

introduce() { # python
  "$1" -c 'import cuflash; print("python-test: cuflash", cuflash.__version__, "of", cuflash.__path__[0])'
  "$1" -m cuflash --device "$device" | sed -n 's/^self-check  */python-test: self-check /p'
}
run() { # python
  introduce "$1" || return
  CUFLASH_TEST_DEVICE=$device "$1" -m pytest -q -ra tests/python "${@:2}" | tee build/python-test.log
}
# Each file in a process of its own, many at once: on a GPU the tests wait for the compilation of kernels.
run_side_by_side() { # python
  introduce "$1" || return # `timed` asks for the result, so that set -e does not see a failure here
  mkdir -p build/python-tests
  export CUFLASH_TEST_DEVICE=$device
  # shellcheck disable=SC2016 # expanded by the shell that xargs starts
  printf '%s\n' tests/python/test_*.py | xargs -P "${JOBS:-$(nproc)}" -I{} bash -c '
    log=build/python-tests/$(basename "$1" .py).log
    "$2" -m pytest -q -ra "$1" "${@:3}" >"$log" 2>&1; result=$?
    [ "$result" -eq 0 ] || cat "$log"
    echo "python-test: $1: $(tail -n 1 "$log")"
    [ "$result" -eq 0 ] || [ "$result" -eq 5 ]' _ {} "$1" "${@:2}"
}

if [ "$device" = cuda ]; then
  for module in pytest numpy torch nanobind; do
    has "$python" "$module" || skip "$python has no $module, and nothing is installed for tests on a GPU"
  done
  "$python" -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null || skip "PyTorch of $python sees no GPU"
  timed "the package was built" build_package "$python"
  timed "the tests ran" run_side_by_side "$python" "$@"
  exit
fi

# A PyTorch that is there already is used; otherwise the one of PyPI, where it is no larger than needed.
torch=()
torch_folder=$("$python" -c 'import os, torch; print(os.path.dirname(torch.__path__[0]))' 2>/dev/null || true)
if [ -n "$torch_folder" ]; then
  say "PyTorch of $torch_folder"
elif [ "$(uname -m)" = aarch64 ] || [ "${CUFLASH_TEST_TORCH:-}" = install ]; then
  torch=("torch==$torch_version")
else
  say "tests with PyTorch are skipped: $python has none, and PyPI's for $(uname -m) brings gigabytes of CUDA" \
    "libraries; CUFLASH_TEST_TORCH=install takes it all the same"
fi

# Installed once for each list of requirements, and for each state of the sources.
install_requirements() {
  local wanted site
  wanted=$(cat "$requirements" && echo "${torch[*]-} $torch_folder")
  [ "$(cat "$venv/installed" 2>/dev/null)" != "$wanted" ] || return 0
  say "pip installs into $venv, from PyPI: $(grep -o '^[a-zA-Z][^ ;#]*' "$requirements" | paste -sd' ') ${torch[*]-}"
  rm -rf "$venv"
  "$python" -m venv "$venv" || skip "$python -m venv failed"
  # Looked at last: what is installed here goes before what lies beside that PyTorch.
  site=$("$venv/bin/python" -c 'import site; print(site.getsitepackages()[0])')
  [ -z "$torch_folder" ] || echo "$torch_folder" >"$site/torch.pth"
  # Most modules of these packages are never imported: those that are, Python compiles by itself.
  timed "test requirements installed" pip install --no-compile -r "$requirements" ${torch[@]+"${torch[@]}"} || return
  echo "$wanted" >"$venv/installed"
}
install_package() {
  local state
  state=$(find pyproject.toml CMakeLists.txt cmake include src kernels cli python -type f ! -name '*.pyc' -print0 |
    sort -z | xargs -0 sha256sum | sha256sum)
  [ "$(cat "$venv/package" 2>/dev/null)" != "$state" ] || return 0
  timed "pip install ." pip install --force-reinstall --no-deps . || return
  echo "$state" >"$venv/package"
}

if install_requirements && install_package; then
  run "$venv/bin/python" "$@"
elif has "$python" pytest && has "$python" numpy && has "$python" nanobind; then
  say "PyPI cannot be reached: using what $python has, and the package of the release build"
  build_package "$python"
  run "$python" "$@"
else
  skip "PyPI cannot be reached (the error is above), and $python has not all of pytest, numpy and nanobind"
fi
