#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The command and what reports offer, on a real GPU: doctor, observe, compare, tune, replay, reports as
# pages, time series, traces, leaks, a snapshot on a signal, ranks by torchrun. Programs come from
# build.sh; carry .gpu to the machine. Everything is kept in $OUT/command.tar.gz, a line a check in
# $OUT/checks.txt; exits non-zero if one does not hold.
#   tests/gpu/run_command.sh           all, about 3 minutes
#   CUPOOL_TEST_TORCH=0 ...            without PyTorch
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
chmod +x .gpu/* 2>/dev/null
nvidia-smi -L || { echo "no GPU here" >&2; exit 2; }

out=${OUT:-out}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"
: >"$out/checks.txt"
cupool=$PWD/.gpu/cupool
library=$PWD/.gpu/libcupool.so
export library
programs=$PWD/.gpu
export work programs
wrong=0

# check NAME COMMAND...: its output goes to a file of that name; what fails is shown. COMMAND may be a
# function of this script.
check() {
  local name=$1
  shift
  # shellcheck disable=SC2016  # the inner shell expands it
  if timeout --kill-after=5 90 bash -c '"$@"' "$name" "$@" >"$work/$name.out" 2>"$work/$name.err"; then
    echo "ok  $name" | tee -a "$out/checks.txt"
  else
    echo "NO  $name (exit $?)" | tee -a "$out/checks.txt"
    tail -n 5 "$work/$name.err"
    wrong=$((wrong + 1))
  fi
}

# holds NAME FILE WORDS: the words stand in a file that a check has written.
holds() {
  check "$1" grep -q -e "$3" "$work/$2"
}

preloaded() {
  env LD_PRELOAD="$library" CUPOOL_STATS=json CUPOOL_STATS_FILE="$work/$1-%p.json" "${@:2}"
}
export -f preloaded

check doctor_static "$cupool" doctor "$programs/legacy_loop_static"
check doctor_shared "$cupool" doctor "$programs/legacy_loop_shared"
check doctor_driver "$cupool" doctor "$programs/driver_api"
holds doctor_names_the_gpu doctor_static.out 'memory pools that can be shared'

# What a running program holds, from itself: by its channel, with the device's UUID as nvidia-smi has it.
seen_by_top() {
  (exec env LD_PRELOAD="$library" CUPOOL_STATS=off "$programs/inference_loop" threads=4 requests=30000) &
  local pid=$! told=1
  for _ in $(seq 50); do
    if "$cupool" top "$pid" && "$cupool" top --json | tee "$work/top.json" | grep -q "\"pid\":$pid,.*\"told\""; then
      told=0
      break
    fi
    sleep 0.1
  done
  wait "$pid"
  return "$told"
}
export -f seen_by_top
export cupool
check top seen_by_top
check top_uuid grep -q -i -F "$(nvidia-smi --query-gpu=uuid --format=csv,noheader -i 0)" "$work/top.json"

loop=("$programs/inference_loop" threads=4 requests=300)
check observe "$cupool" observe --json "$work/observe.json" -- "${loop[@]}"
check compare "$cupool" compare -n 3 --ignore '(_us|_per_second)=.*' -- "${loop[@]}"
check compare_static "$cupool" compare -n 3 --ignore 'per_iteration=.*' -- "$programs/legacy_loop_static"

check series preloaded series CUPOOL_STATS_INTERVAL=10ms "${loop[@]}"
check page "$cupool" report --html "$work/threads.html" "$work"/series-*.json
check tune "$cupool" tune "$work"/series-*.json

check trace preloaded trace CUPOOL_TRACE="$work/trace.csv" "${loop[@]}"
check replay "$cupool" replay "$work/trace.csv"
check replay_busy "$cupool" replay --touch "$work/trace.csv"
check trace_json preloaded trace_json CUPOOL_TRACE="$work/trace.json" "${loop[@]}"
check trace_is_json python3 -c "import json,sys; json.load(open(sys.argv[1]))" "$work/trace.json"
check leaks preloaded leaks CUPOOL_LEAKS=1 "$programs/legacy_loop_static"
check nvtx preloaded nvtx CUPOOL_NVTX=1 "${loop[@]}"

# A snapshot while it runs, and the program ends as it would have. The shell that becomes the program
# has its process number.
snapshot_on_signal() {
  (exec env LD_PRELOAD="$library" CUPOOL_STATS=json CUPOOL_STATS_FILE="$work/signal-%p.json" \
    CUPOOL_STATS_SIGNAL=USR1 "$programs/inference_loop" threads=4 requests=40000) &
  local program=$!
  sleep 2
  kill -USR1 "$program"
  wait "$program" && compgen -G "$work/signal-*.1.json" >/dev/null
}
export -f snapshot_on_signal
check signal snapshot_on_signal

if [ "${CUPOOL_TEST_TORCH:-1}" = 1 ]; then
  train=(env PYTORCH_NO_CUDA_MEMORY_CACHING=1 python3 "$PWD/tests/gpu/programs/torch_train.py" 40)
  check doctor_python "$cupool" doctor python3 tests/gpu/programs/torch_train.py
  check torch_series preloaded torch CUPOOL_STATS_INTERVAL=10ms CUPOOL_LEAKS=1/64 "${train[@]}"
  check torch_page "$cupool" report --html "$work/torch.html" "$work"/torch-*.json
  check torch_observe "$cupool" observe --json "$work/torch-observed.json" -- "${train[@]}"
  check ranks env LD_PRELOAD="$library" CUPOOL_STATS=json \
    CUPOOL_STATS_FILE="$work/rank-%r-%p.json" PYTORCH_NO_CUDA_MEMORY_CACHING=1 \
    python3 -m torch.distributed.run --standalone --nproc-per-node "$(nvidia-smi -L | wc -l)" \
    tests/gpu/programs/torch_train.py 20
  check rank_page "$cupool" report --html "$work/ranks.html" "$work"/rank-*.json
fi

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader >"$work/gpu.txt"
tar -C "$work" -czf "$out/command.tar.gz" .
echo "$wrong of $(wc -l <"$out/checks.txt") checks failed"
[ "$wrong" -eq 0 ]
