#!/usr/bin/env bash
# Runs the Python tests: tools/python_test.sh cpu|cuda [arguments of pytest], or tools/python_test.sh prepare|install
#
# cpu      makes a virtual environment under build/, and installs the package by `pip install .` and the tests'
#          requirements from PyPI, including PyTorch. Without a network it uses what can be imported. With
#          CUFLASH_TEST_PYTHON=required it is an error to skip the suite.
# prepare  only downloads what cpu needs, while something else is compiled.
# install  also installs the package, while other tests run.
# cuda     uses the current Python and the package of the release build, and installs nothing.
# PYTHON names another Python than python3. CUFLASH_TEST_TORCH=off does not install PyTorch and skips its tests.
#
# The skipped tests and their reasons are printed at the end and stored in build/python-test.skips, which tools/skips.py
# reads.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly device=$1 python=${PYTHON:-python3} venv=build/python-test
readonly requirements=tests/python/requirements.txt skips=build/python-test.skips
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

# Builds the package from the objects of the release build. Needs nanobind, but no network.
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
  local result=0 workers=()
  introduce "$1" || return
  if has "$1" xdist; then
    workers=(-n "${JOBS:-$(nproc)}")
    export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} # for each worker: there is one worker per core
  fi
  rm -f "$skips"
  CUFLASH_TEST_DEVICE=$device CUFLASH_TEST_SKIPS=$skips \
    "$1" -m pytest -q -ra ${workers[@]+"${workers[@]}"} tests/python "${@:2}" | tee build/python-test.log || result=$?
  "$1" tools/skips.py python "$skips"
  return "$result"
}
# Runs each file in a separate process, many in parallel: on a GPU the tests mostly wait for kernels to compile.
run_side_by_side() { # python
  introduce "$1" || return # `timed` asks for the result, so that set -e does not see a failure here
  mkdir -p build/python-tests
  export CUFLASH_TEST_DEVICE=$device
  # shellcheck disable=SC2016 # expanded by the shell that xargs starts
  find tests/python -name 'test_*.py' | sort | xargs -P "${JOBS:-$(nproc)}" -I{} bash -c '
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

# The folder of an installed PyTorch; if there is none, PyTorch comes from PyPI.
torch_folder=$("$python" -c 'import os, torch; print(os.path.dirname(torch.__path__[0]))' 2>/dev/null || true)

# Recreates the environment if Python or the folder of PyTorch has changed.
make_venv() {
  local wanted site
  wanted="$("$python" -VV) $torch_folder"
  [ "$(cat "$venv/made" 2>/dev/null)" != "$wanted" ] || return 0
  rm -rf "$venv"
  "$python" -m venv "$venv" || skip "$python -m venv failed"
  # A .pth file puts PyTorch's folder last, so that packages installed here take precedence over those in that folder.
  site=$("$venv/bin/python" -c 'import site; print(site.getsitepackages()[0])')
  [ -z "$torch_folder" ] || echo "$torch_folder" >"$site/torch.pth"
  echo "$wanted" >"$venv/made"
}
# --no-compile: most modules of these packages are never imported, and Python compiles the others itself.
install_requirements() {
  make_venv
  ! cmp -s "$requirements" "$venv/requirements" || return 0
  say "downloading what $requirements lists into $venv, about 200 MB"
  timed "test requirements installed" pip install --no-compile -r "$requirements" || return
  cp "$requirements" "$venv/requirements"
}
# On aarch64 this takes the last version whose wheel is for the CPU alone. On x86-64 every version includes CUDA's
# libraries: 2.9.1 has 4.1 GB with them, 2.15.0 has 3 GB and is what users get. The two take different routes to a
# tensor's memory.
choose_torch() {
  if [ "$(uname -m)" = aarch64 ]; then
    torch=2.9.1 torch_size="104 MB" torch_flags=()
  else
    torch=2.15.0 torch_size="3 GB with the CUDA libraries that PyPI's brings; CUFLASH_TEST_TORCH=off leaves it out"
    torch_flags=(--no-cache-dir) # writing a second copy takes longer than downloading again
  fi
}
install_torch() {
  local torch torch_size torch_flags
  choose_torch
  if [ -n "$torch_folder" ]; then
    say "PyTorch of $torch_folder"
  elif [ "$(cat "$venv/torch" 2>/dev/null)" = "$torch" ]; then
    say "PyTorch $torch of $venv"
  elif [ "${CUFLASH_TEST_TORCH:-}" = off ]; then
    say "PyTorch is not installed, because CUFLASH_TEST_TORCH=off: its tests are skipped"
  else
    say "downloading PyTorch $torch into $venv, $torch_size"
    if timed "PyTorch installed" pip install --no-compile ${torch_flags[@]+"${torch_flags[@]}"} "torch==$torch"; then
      echo "$torch" >"$venv/torch"
    elif [ "${CUFLASH_TEST_PYTHON:-}" = required ]; then
      say "FAILED: PyTorch could not be installed (the error is above), and CUFLASH_TEST_PYTHON=required"
      exit 1
    else
      say "PyTorch could not be installed (the error is above): its tests are skipped"
    fi
  fi
}
# Installs the package once for each state of the sources. It reuses the objects of the release build; without one, pip
# compiles everything, as it does for users.
install_package() {
  local state release=build/release flags=()
  state=$(find pyproject.toml CMakeLists.txt cmake include src kernels machine cli python -type f ! -name '*.pyc' -print0 |
    sort -z | xargs -0 sha256sum | sha256sum)
  [ "$(cat "$venv/package" 2>/dev/null)" != "$state" ] || return 0
  if [ -e "$release/CMakeCache.txt" ]; then
    cmake --build "$release" --parallel "${JOBS:-$(nproc)}" --target cuflash >/dev/null || return
    flags=("--config-settings=cmake.define.CUFLASH_OBJECTS_OF=$PWD/$release")
  fi
  timed "pip install ." pip install --force-reinstall --no-deps ${flags[@]+"${flags[@]}"} . || return
  echo "$state" >"$venv/package"
}

# Only one of these scripts runs at a time, so cpu waits until prepare and install have finished.
mkdir -p build
exec {lock}>build/python-test.lock
flock "$lock"
if [ "$device" = install ]; then
  install_requirements && install_torch && install_package
  exit
fi
if [ "$device" = prepare ]; then
  install_requirements && install_torch
  exit
fi

if install_requirements && install_torch && install_package; then
  run "$venv/bin/python" "$@"
elif has "$python" pytest && has "$python" numpy && has "$python" nanobind; then
  say "PyPI cannot be reached: using what $python has, and the package of the release build"
  build_package "$python"
  run "$python" "$@"
else
  skip "PyPI cannot be reached (the error is above), and $python has not all of pytest, numpy and nanobind"
fi
