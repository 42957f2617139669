#!/usr/bin/env bash
# Runs each libFuzzer target for some seconds, starting from its seeds and the corpus of earlier runs: tools/fuzz.sh
# SECONDS An input that breaks a target is kept as build/fuzz/<target>-crash-...; <target>_plain FILE reads it again.
set -euo pipefail

seconds=${1:?seconds for each target}
for target in npy_fuzz safetensors_fuzz; do
  work=build/fuzz/$target
  mkdir -p "$work/found"
  "build/fuzz/bin/${target}_plain" --write "$work"
  printf '\n== %s for %s s\n' "$target" "$seconds"
  "build/fuzz/bin/$target" -max_total_time="$seconds" -max_len=4096 -timeout=10 -rss_limit_mb=2048 \
    -dict="$work/words.dict" -artifact_prefix="build/fuzz/$target-" -print_final_stats=1 "$work/found" "$work/seeds"
done
