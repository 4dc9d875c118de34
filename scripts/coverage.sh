#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Writes docs/coverage.md: which branches and conditions of engine and entry the tests decide. Needs no GPU, some
# twenty minutes, and clang 19 (Debian 12, Ubuntu 24.04), whose records scripts/coverage_map.py reads.
#   scripts/coverage.sh        builds, runs the tests, writes the map
#   scripts/coverage.sh map    writes the map anew from the last run, after a change of the list of explanations
set -uo pipefail
# shellcheck source=scripts/setup.sh
source "$(dirname "$0")/setup.sh"
mode=${1:-all}
case $mode in all | map) ;; *) sed -n '3,6p' "$0"; exit 2 ;; esac

build=$root/build/coverage
library=$build/libcupool.so
explorers=(explorer_tests explorer_caches_tests explorer_lane_tests explorer_dependent_tests explorer_lives_tests
  explorer_host_tests explorer_stream_caches_tests explorer_order_tests)

# The library and the unit tests are instrumented. The simulated device and the tests' programs are the dev
# preset's: the libraries of one machine fit all of its programs.
build_all() {
  setup_packages clang-19=clang++-19 llvm-19=llvm-cov-19 libclang-rt-19-dev=/usr/lib/llvm-19/lib/clang/19/lib \
    clang-format-14=clang-format-14 || return 1
  setup_cli11 && setup_toolkit || return 1
  step "building"
  build_preset dev tested_programs preload_tests property_programs fault_sweep_programs || return 1
  { configure_preset release -B "$build" -D CUPOOL_COVERAGE=ON -D CUPOOL_WERROR=OFF -D CUPOOL_BUILD_TESTS=ON \
      -D CMAKE_C_COMPILER=clang-19 -D CMAKE_CXX_COMPILER=clang++-19 \
      -D CMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g1 -DNDEBUG" &&
    cmake --build "$build" -j "$job_count" --target libcupool.so cupool_unit_tests "${explorers[@]}"; } >"$build.log" 2>&1 ||
    { cat "$build.log"; return 1; }
}

# A test that fails here has failed for its time, or for what the profile adds to the library: it still counts.
run_ctest() {
  local folder=$1
  shift
  (cd "$folder" && ctest -j $((2 * job_count)) --timeout 120 "$@") >"$build/ctest.log" 2>&1
  grep -E 'tests passed' "$build/ctest.log"
  grep -E '^\s+[0-9]+ - .*\((Failed|Timeout|SEGFAULT|Subprocess)' "$build/ctest.log" || true
}

random_programs() {
  build/dev/tests/property/property_programs --library "$library" --first 1 "$@" | tail -n 1
}

run_tests() {
  rm -rf "$build/profiles"
  step "unit tests"
  run_ctest "$build/tests/unit" -E '^scripts'
  run_ctest "$build/tests/explorer"
  step "tests under the preload"
  PRELOAD_TEST_LIBRARY=$library run_ctest build/dev -L preload -E '^(report_schema|driver_queries)|^Elf\.'
  step "random programs"
  local free_mode
  for free_mode in auto ordered sync; do random_programs --count 3000 --free-mode "$free_mode"; done
  random_programs --count 1000 --lane
  random_programs --count 1000 --host
  random_programs --count 60 --wide
  step "faults"
  # A fault that fails counts, too: the sweeps of the tests without instruments judge it.
  python3 tests/faults/sweep.py --build build/dev --library "$library" --runs 3000 | tail -n 1
  python3 tests/faults/sweep.py --build build/dev --library "$library" --pairs --runs 600 | tail -n 1
  python3 tests/faults/sweep.py --build build/dev --library "$library" --shut-down --runs 1500 | tail -n 1
  return 0
}

if [ "$mode" = all ]; then
  build_all && run_tests || exit 1
fi
objects=(-object "$build/tests/unit/cupool_unit_tests")
for explorer in "${explorers[@]}"; do objects+=(-object "$build/tests/explorer/$explorer"); done
llvm-profdata-19 merge -sparse "$build"/profiles/*.profraw -o "$build/tests.profdata" &&
  llvm-cov-19 export "$library" "${objects[@]}" -instr-profile "$build/tests.profdata" \
    src/engine src/entry >"$build/export.json" || exit 1
python3 scripts/coverage_map.py "$build/export.json"
