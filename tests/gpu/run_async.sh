#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The program's own cudaMallocAsync: what a pair costs and whether memory is ever handed out too early,
# without cupool and with each CUPOOL_ASYNC. The last run, with an engine made wrong, has to fail.
# Programs come from build.sh; carry .gpu to the machine.
#   tests/gpu/run_async.sh [--budget SECONDS]      for each proof, default 20
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
chmod +x .gpu/* 2>/dev/null
nvidia-smi -L || { echo "no GPU here" >&2; exit 2; }
budget=20
[ "${1:-}" = --budget ] && budget=$2
out=${OUT:-out}
mkdir -p "$out"
failed=0
for mode in none off threshold serve; do
  echo "== $mode"
  for part in pairs proof; do
    environment=(CUPOOL_STATS=json "CUPOOL_STATS_FILE=$out/async_${mode}_$part.report")
    [ $mode = none ] || environment+=("LD_PRELOAD=$PWD/.gpu/libcupool.so" "CUPOOL_ASYNC=$mode")
    env "${environment[@]}" timeout --kill-after=10 $((budget * 2 + 60)) .gpu/async_serve $part \
      "budget=$budget" | tee "$out/async_${mode}_$part.txt" || failed=1
  done
done
if [ -e .gpu/libcupool_mutable.so ]; then
  echo "== serve, reuses-on-another-stream"
  if env CUPOOL_STATS=off "LD_PRELOAD=$PWD/.gpu/libcupool_mutable.so" CUPOOL_ASYNC=serve \
    CUPOOL_TEST_MUTATION=reuses-on-another-stream timeout --kill-after=10 $((budget * 2 + 60)) \
    .gpu/async_serve proof "budget=$budget"; then
    echo "the fault was not noticed" && failed=1
  fi
fi
exit $failed
