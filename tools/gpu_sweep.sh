#!/usr/bin/env bash
# Checks random problems of every kind against the float64 oracle, in parallel sweeps with both kernel families of a
# GPU:
#   tools/gpu_sweep.sh FOLDER [SECONDS]
# FOLDER gets a log of every sweep, and failures.txt with one line for each failing problem, which begins with the
# command that repeats it. All sweeps stop after SECONDS (default: no limit). The output ends with one line for each
# sweep, and says how to continue those that have not reached their count.
#
#   GPU_COUNT, GPU_PORTABLE_COUNT   problems of each kind with the best and with the portable kernels (20000, 3000)
#   GPU_SEED                        which sequence of problems
#   GPU_FIRST                       number of a sweep's first problem: 'best-plain=8526 best-cache=9138'
#   GPU_KERNEL_SETS                 sets of types, head sizes and options of a sweep; each compiles other kernels (6)
#   GPU_SWEEP_DEVICE                cpu: tries the script without a GPU
set -euo pipefail

if [ $# -lt 1 ] || [ $# -gt 2 ]; then
  echo "usage: tools/gpu_sweep.sh FOLDER [SECONDS]" >&2
  exit 2
fi
mkdir -p "$1"
folder=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
readonly folder seconds=${2:-0} cuflash=${CUFLASH:-build/release/bin/cuflash}
readonly seed=${GPU_SEED:-1} kernel_sets=${GPU_KERNEL_SETS:-6} device=${GPU_SWEEP_DEVICE:-cuda}
readonly -A counts=([best]=${GPU_COUNT:-20000} [portable]=${GPU_PORTABLE_COUNT:-3000})
readonly -A kinds=([plain]=--plain [options]=--options [cache]=--cache [any]="")

names=() pids=()
trap 'jobs -p | xargs -r kill 2>/dev/null' EXIT # ends the sweeps that still run if this is interrupted

first_of() { # name of a sweep
  local word
  for word in ${GPU_FIRST:-}; do
    [ "${word%%=*}" != "$1" ] || echo "${word#*=}"
  done
}

# Sweeps with portable kernels have lower priority and fewer problems.
start() { # family, kind
  local name=$1-$2 first
  first=$(first_of "$name")
  local count=$((${counts[$1]} - ${first:-0}))
  [ "$count" -gt 0 ] || return 0
  local niceness=0 command=("$cuflash" check --device "$device" --seed "$seed" --first "${first:-0}" --count "$count"
    --failures "$folder/$name.failures")
  # shellcheck disable=SC2206 # kind "any" adds no word
  command+=(${kinds[$2]})
  [ "$device" = cpu ] || command+=(--kernel-sets "$kernel_sets")
  [ "$1" = best ] || niceness=5
  rm -f "$folder/$name.failures"
  CUFLASH_CUDA_KERNELS=$1 nice -n "$niceness" timeout --foreground --kill-after=60 "$seconds" "${command[@]}" \
    >"$folder/$name.log" 2>&1 &
  names+=("$name") pids+=($!)
}

# Prints the line of a finished sweep, and notes where it would continue.
left=() failed=0
report() { # name, exit status
  local log=$folder/$1.log line checked from failures took
  line=$(grep ' against the float64 oracle in ' "$log" | tail -n 1) || true
  if [ -z "$line" ]; then
    failed=1
    echo "gpu-sweep: $1: ended with status $2 and without a summary; the end of $log:"
    tail -n 5 "$log"
    return
  fi
  checked=${line%% *} from=${line#*, from } failures=${line##*: } took=${line#* oracle in }
  from=${from%%[,)]*} failures=${failures% failed}
  [ "$failures" -eq 0 ] || failed=1
  [ $((from + checked)) -ge "${counts[${1%-*}]}" ] || left+=("$1=$((from + checked))")
  echo "gpu-sweep: $1: $checked problems, $failures failed, seed $seed, from $from, ${took%%:*}"
}

for family in best portable; do
  [ "$device" = cuda ] || [ "$family" = best ] || continue
  for kind in plain options cache any; do start "$family" "$kind"; done
done
statuses=()
for n in "${!names[@]}"; do
  statuses[n]=0
  wait "${pids[n]}" || statuses[n]=$?
done
cat "$folder"/*.failures >"$folder/failures.txt" 2>/dev/null || true
for name in "${names[@]}"; do # where the time went
  grep '^seconds of all threads\|^[0-9]* kernels: ' "$folder/$name.log" | sed "s/^/gpu-sweep: $name: /" || true
done
for n in "${!names[@]}"; do report "${names[n]}" "${statuses[n]}"; done
[ ! -s "$folder/failures.txt" ] || echo "gpu-sweep: $(wc -l <"$folder/failures.txt") failures in $folder/failures.txt"
[ ${#left[@]} -eq 0 ] || echo "gpu-sweep: continue with GPU_SEED=$seed GPU_FIRST='${left[*]}'"
exit "$failed"
