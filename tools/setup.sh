#!/usr/bin/env bash
# Installs the packages that a make target needs: tools/setup.sh
# build|demo|bench|python|clang|fuzz|teeth|docs|format|tidy
#
# If nothing is missing it returns at once and needs no network. Otherwise it names the missing packages and installs
# them with apt-get (as root or through sudo), or says what to install. Optional packages never stop a build.
set -euo pipefail

purpose=${1:-build}
readonly tools_dir=build/tools # the Makefile puts $tools_dir/bin first in PATH
readonly cmake_needed=3.25
required=()
optional=()

say() { printf 'setup: %s\n' "$*" >&2; }
have() { command -v "$1" >/dev/null 2>&1; }
python_lacks() { ! "${PYTHON:-python3}" -c "$1" >/dev/null 2>&1; }
version_at_least() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]; }
cmake_is_new_enough() {
  local words
  have cmake && read -r -a words < <(cmake --version) && version_at_least "$cmake_needed" "${words[2]}"
}

# Prints the package of every missing header, with one run of the preprocessor.
missing_headers() { # package:header...
  local entry include_flags=() prefix prefixes=()
  IFS=':;' read -r -a prefixes <<<"${CMAKE_PREFIX_PATH:-}"
  for prefix in ${prefixes[@]+"${prefixes[@]}"}; do include_flags+=("-I$prefix/include"); done
  for entry in "$@"; do printf '#if !__has_include(<%s>)\n%s\n#endif\n' "${entry#*:}" "missing:${entry%%:*}"; done |
    "$compiler" -std=c++20 ${include_flags[@]+"${include_flags[@]}"} -E -P -x c++ - 2>/dev/null | sed -n 's/^missing://p'
}

# Announces every change of this machine before it makes it.
install_packages() {
  local as_root=() how=', as root' log
  have apt-get || return 1
  if [ "$(id -u)" -ne 0 ]; then
    have sudo && sudo -n true 2>/dev/null || return 1
    as_root=(sudo -n) how=' through sudo, as root'
  fi
  apt() { ${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive apt-get -y -qq "$@" >"$log" 2>&1; }
  say "missing on this machine: $*"
  say "apt-get installs them now$how: apt-get install -y --no-install-recommends $*"
  log=$(mktemp)
  # The first attempt usually fails because package lists are missing or old.
  if apt install --no-install-recommends "$@" || { apt update && apt install --no-install-recommends "$@"; }; then
    rm "$log"
  else
    cat "$log" >&2
    rm "$log"
    return 1
  fi
}

require() { # packages, without any of which the build cannot continue
  install_packages "$@" && return
  say "could not install $*; do it by hand and run this again"
  say "on Debian or Ubuntu: sudo apt-get update && sudo apt-get install -y $*"
  exit 1
}

# Optional packages are tried once, so that a machine without a network does not wait for them at every build.
suggest() { # packages
  local package wanted=()
  for package in "$@"; do [ -e "$tools_dir/no-$package" ] || wanted+=("$package"); done
  [ "${#wanted[@]}" -gt 0 ] || return 0
  install_packages "${wanted[@]}" && return
  mkdir -p "$tools_dir"
  for package in "${wanted[@]}"; do touch "$tools_dir/no-$package"; done
  say "could not install ${wanted[*]}; the build works without, with less in it"
}

newer_cmake() {
  say "cmake $cmake_needed or newer is needed; pip installs it from PyPI under $tools_dir now, and nowhere else"
  if ! python3 -m venv "$tools_dir" 2>/dev/null; then
    rm -rf "$tools_dir"
    require python3-venv
    python3 -m venv "$tools_dir"
  fi
  "$tools_dir/bin/pip" --quiet --disable-pip-version-check install "cmake>=$cmake_needed" && return
  say "could not install cmake; install version $cmake_needed or newer by hand, for example: pip install cmake"
  exit 1
}

# libFuzzer comes with clang on some systems and in a separate package on others.
has_libfuzzer() {
  printf 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }\n' |
    clang++ -fsanitize=fuzzer,address -x c++ - -o /dev/null >/dev/null 2>&1
}
setup_libfuzzer() {
  have clang++ || require clang
  has_libfuzzer && return
  local version
  version=$(clang++ -dumpversion)
  require "libclang-rt-${version%%.*}-dev"
  has_libfuzzer && return
  say "clang++ cannot link with -fsanitize=fuzzer,address; install its compiler-rt, or put another clang++ first in PATH"
  exit 1
}

compiler=${CXX:-c++}
builds=no
headers=()
cannot_do_without=libgtest-dev
case $purpose in
  build | demo | bench | clang)
    headers=(libgtest-dev:gtest/gtest.h librapidcheck-dev:rapidcheck.h libcli11-dev:CLI/CLI.hpp)
    [ "$purpose" != demo ] || cannot_do_without+=" libcli11-dev"
    builds=yes
    ;;
  fuzz)
    setup_libfuzzer
    compiler=clang++
    builds=yes
    ;;
  teeth) have python3 || required+=(python3) ;;
  docs)
    have doxygen || required+=(doxygen)
    have python3 || required+=(python3)
    ;;
  python)
    have "$compiler" || required+=(g++)
    python_lacks 'import ensurepip, venv' && required+=(python3-venv)
    python_lacks 'import os, sysconfig; os.stat(sysconfig.get_paths()["include"] + "/Python.h")' && required+=(python3-dev)
    ;;
  format | tidy) have "clang-$purpose" || required+=("clang-$purpose") ;;
  *)
    say "unknown purpose '$purpose'; one of build, demo, bench, python, clang, fuzz, teeth, docs, format, tidy"
    exit 2
    ;;
esac
if [ "$builds" = yes ]; then
  if [ -n "${CXX:-}" ] && ! have "${CXX%% *}"; then
    say "CXX is '$CXX', which is not on this machine; install it, name another compiler, or unset CXX"
    exit 1
  fi
  have "$compiler" || required+=(g++)
  have cmake || required+=(cmake)
  have ninja || have make || required+=(ninja-build)
fi
[ "$purpose" != clang ] || have clang++ || required+=(clang)
if [ "${#required[@]}" -gt 0 ]; then
  require "${required[@]}"
  required=()
fi
[ "$builds" = yes ] || exit 0

cmake_is_new_enough || newer_cmake
if ! printf '#if __cplusplus < 202002L\n#error\n#endif\n' | "$compiler" -std=c++20 -E -x c++ - >/dev/null 2>&1; then
  say "$compiler does not know C++20; install g++ 12 or clang 14 or newer and set CXX, for example: make test CXX=g++-12"
  exit 1
fi
for package in $(missing_headers ${headers[@]+"${headers[@]}"}); do
  case " $cannot_do_without " in
    *" $package "*) required+=("$package") ;;
    *) optional+=("$package") ;;
  esac
done
[ "${#required[@]}" -eq 0 ] || require "${required[@]}"
[ "${#optional[@]}" -eq 0 ] || suggest "${optional[@]}"
