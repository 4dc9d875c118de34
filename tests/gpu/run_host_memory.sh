#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Page-locked host memory: what a pair costs and whether memory is ever handed out too early, without
# cupool and with it in each mode. Programs come from build.sh; carry .gpu to the machine.
# Each with the static runtime and with the shared one, where cupool has short cuts.
#   tests/gpu/run_host_memory.sh [--budget SECONDS]      for each of the eight runs, default 60
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
chmod +x .gpu/* 2>/dev/null
nvidia-smi -L || { echo "no GPU here" >&2; exit 2; }
budget=60
[ "${1:-}" = --budget ] && budget=$2
out=${OUT:-out}
mkdir -p "$out"
failed=0
for program in host_memory host_memory_shared; do
  for mode in none auto ordered sync; do
    echo "== $program $mode"
    environment=(CUPOOL_STATS=json "CUPOOL_STATS_FILE=$out/${program}_$mode.report")
    [ $mode = none ] || environment+=("LD_PRELOAD=$PWD/.gpu/libcupool.so" "CUPOOL_FREE_MODE=$mode")
    env "${environment[@]}" timeout --kill-after=10 $((budget * 2 + 30)) ".gpu/$program" \
      "budget=$budget" | tee "$out/${program}_$mode.txt" || failed=1
  done
done
exit $failed
