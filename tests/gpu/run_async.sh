#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The program's own cudaMallocAsync without cupool and with each CUPOOL_ASYNC: what pairs cost with the static and
# the shared runtime, whether memory is handed out too early, and whether a full device has it where the driver has;
# an engine that is wrong on purpose must be seen.
# Then libraries that allocate in stream order (evidence/stream_ordered.json), if there is time for them.
#   tests/gpu/run_async.sh [--budget SECONDS] [--libraries SECONDS]     a proof's, and the libraries' for each mode
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
chmod +x .gpu/* 2>/dev/null
nvidia-smi -L || { echo "no GPU here" >&2; exit 2; }
budget=20
libraries=0
while [ $# -ge 2 ]; do
  case $1 in
    --budget) budget=$2 ;;
    --libraries) libraries=$2 ;;
    *) echo "unknown: $1" >&2 && exit 2 ;;
  esac
  shift 2
done
out=${OUT:-out}
mkdir -p "$out"
failed=0
for program in async_serve async_serve_shared; do
  for mode in none off threshold serve; do
    for part in pairs proof full; do
      # The runtime makes no difference to when memory is handed out.
      [ "$program $part" = "$program pairs" ] || [ $program = async_serve ] || continue
      echo "== $program $mode $part"
      name=${program/serve/$mode}_$part
      environment=(CUPOOL_STATS=json "CUPOOL_STATS_FILE=$out/$name.report")
      [ $mode = none ] || environment+=("LD_PRELOAD=$PWD/.gpu/libcupool.so" "CUPOOL_ASYNC=$mode")
      env "${environment[@]}" timeout --kill-after=10 $((budget * 2 + 60)) ".gpu/$program" $part \
        "budget=$budget" | tee "$out/$name.txt" || failed=1
    done
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
if [ "$libraries" -gt 0 ]; then
  for mode in threshold serve; do
    OUT=$out/libraries_$mode tests/gpu/evidence/run.py --list tests/gpu/evidence/stream_ordered.json \
      --folder tests/gpu/programs --env CUPOOL_ASYNC=$mode --runs 3 --budget "$libraries" || failed=1
  done
fi
exit $failed
