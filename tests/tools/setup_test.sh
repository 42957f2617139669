#!/usr/bin/env bash
# tools/setup.sh says which packages it installs, and how, before it does: with an apt-get and a sudo that only take notes.
# tests/tools/setup_test.sh <source folder>
set -euo pipefail

source_dir=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
mkdir bin

fail() {
  printf 'setup_test: %s\n' "$*" >&2
  cat err >&2
  exit 1
}
# What the script may find: no compiler, no clang-format, no network.
for program in bash env cat rm mktemp sed sort head touch mkdir; do ln -s "$(command -v "$program")" bin/; done
# At its call apt-get keeps what had been said by then.
cat >bin/apt-get <<'END'
#!/bin/bash
cat "$NOTES/err" >>"$NOTES/said"
echo "apt-get $*" >>"$NOTES/calls"
exit "${APT_RESULT:-0}"
END
cat >bin/id <<'END'
#!/bin/bash
echo "${FAKE_UID:-0}"
END
cat >bin/sudo <<'END'
#!/bin/bash
[ "$2" != true ] || exit "${SUDO_RESULT:-0}"
echo sudo >>"$NOTES/calls"
shift
exec "$@"
END
chmod +x bin/apt-get bin/id bin/sudo

setup() { # purpose; its exit code is in $code
  rm -f calls said
  code=0
  PATH=$folder/bin NOTES=$folder "$folder/bin/bash" "$source_dir/tools/setup.sh" "$1" >out 2>err || code=$?
}
said() { grep -q -e "$1" said || fail "apt-get ran before this was said: $1"; }

setup format
[ "$code" -eq 0 ] || fail "exit code $code"
said 'missing on this machine: clang-format'
said 'apt-get installs them now, as root: apt-get install -y --no-install-recommends clang-format'
grep -q 'install --no-install-recommends clang-format' calls || fail "nothing was installed"

FAKE_UID=1000 setup tidy
said 'apt-get installs them now through sudo, as root: apt-get install -y --no-install-recommends clang-tidy'
[ "$(head -n 1 calls)" = sudo ] || fail "apt-get did not run through sudo"

# Without the right to install nothing is tried, and the way out is named.
FAKE_UID=1000 SUDO_RESULT=1 setup format
[ "$code" -eq 1 ] || fail "exit code $code"
[ ! -e calls ] || fail "apt-get ran without sudo"
grep -q 'sudo apt-get install -y clang-format' err || fail "no way out"

APT_RESULT=1 setup format
[ "$code" -eq 1 ] || fail "exit code $code"
grep -q 'could not install clang-format; do it by hand' err || fail "no way out"

# What is there is not installed, and nothing is said of it.
printf '#!/bin/bash\n' >bin/clang-format
chmod +x bin/clang-format
setup format
if [ "$code" -ne 0 ] || [ -e calls ] || [ -s err ]; then fail "installed what was there"; fi
# A compiler that the caller names is not replaced by another.
CXX=/nowhere/g++ setup build
[ "$code" -eq 1 ] || fail "exit code $code"
[ ! -e calls ] || fail "apt-get ran for a compiler that CXX names"
grep -q "CXX is '/nowhere/g++', which is not on this machine" err || fail "the compiler is not named"
echo "setup_test: passed"
