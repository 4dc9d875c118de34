#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures the cost of a pair of malloc and free in the engine (tests/bench). Needs no GPU.
#   scripts/bench.sh [FILTER]   a regular expression of benchmark names; without it some minutes
set -uo pipefail
# shellcheck source=scripts/setup.sh
source "$(dirname "$0")/setup.sh"
setup_packages libbenchmark-dev=/usr/include/benchmark/benchmark.h || exit 1
setup_toolkit || exit 1
log=$(mktemp)
{ cmake --preset release -D CUPOOL_BUILD_BENCH=ON &&
  cmake --build --preset release -j "$job_count" --target engine_bench; } >"$log" 2>&1 ||
  { cat "$log"; exit 1; }
rm -f "$log"
exec build/release/tests/bench/engine_bench --benchmark_filter="${1:-.}" --benchmark_counters_tabular=true
