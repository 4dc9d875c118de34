#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds cupool and shows it at work: one legacy program without and with the preload, both times,
# and the report. On a GPU if there is one, else on the simulated device.
#   scripts/demo.sh [threads=N] [requests=N]
set -euo pipefail
# shellcheck source=scripts/setup.sh
source "$(dirname "$0")/setup.sh"
# shellcheck disable=SC2119  # no packages beyond the common ones
announce
# shellcheck disable=SC2119
setup_packages
setup_cli11
setup_toolkit

step "building the release preset: about five minutes of processor time, shared by $job_count jobs"
if nvidia-smi -L >/dev/null 2>&1; then
  program=build/release/tests/demo/inference_loop
  build_preset release cupool inference_loop
  where="on $(nvidia-smi --query-gpu=name --format=csv,noheader | head -1)"
  device=()
  arguments=(threads=4 requests=500)
else
  program=build/release/tests/demo/inference_loop_sim
  build_preset release cupool inference_loop_sim sim_cuda sim_cudart
  where="on the SIMULATED device: these times are simulated and do not apply to a real GPU"
  device=(LD_LIBRARY_PATH="$root/build/release/tests/sim/lib" CUPOOL_SIM_MODE=timed)
  arguments=(threads=4 requests=100)
fi
arguments+=("$@")
library=$root/build/release/libcupool.so

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

run() {  # run NAME [VARIABLE=VALUE...]
  local name=$1
  shift
  if ! env "${device[@]}" "$@" "$program" "${arguments[@]}" >"$scratch/$name"; then
    cat "$scratch/$name"
    echo "the program failed $name cupool" >&2
    exit 1
  fi
}

step "$program ${arguments[*]}, $where"
echo "without cupool ..."
run without
echo "with cupool:  LD_PRELOAD=build/release/libcupool.so $program"
run with LD_PRELOAD="$library" CUPOOL_STATS_FILE="$scratch/report"

step "the report that cupool prints when the program ends"
cat "$scratch/report"

step "side by side, $where"
value() { sed -n "s/^$2=//p" "$scratch/$1"; }
printf '%-22s %14s %14s\n' "" "without" "with cupool"
for key in requests requests_per_second median_us p99_us checksum wrong_bytes; do
  printf '%-22s %14s %14s\n' "$key" "$(value without $key)" "$(value with $key)"
done
if [ "$(value without checksum)" != "$(value with checksum)" ]; then
  echo "the results differ" >&2
  exit 1
fi
awk -v a="$(value without median_us)" -v b="$(value with median_us)" \
  'BEGIN { printf "\nsame results; a request takes %.1f us instead of %.1f us (median), %s\n", b, a, (a < b ? sprintf("%.2f times slower", b / a) : sprintf("%.2f times as fast", a / b)) }'

step "your own program"
echo "  export PATH=$root/build/release:\$PATH"
if [ ${#device[@]} -gt 0 ]; then
  show_sim_lines  # README.md says what the simulated device can run
fi
echo "  cupool doctor ./program     # then cupool observe, compare and run"
