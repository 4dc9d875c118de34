#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The real fuzzers: each target (targets.def), or those that are named, for some minutes by libFuzzer,
# address and undefined-behaviour sanitizers. Needs clang with its libFuzzer. Inputs that it found useful
# stay in build/fuzz/corpus; one that fails is left there as NAME-crash-*.
# Usage: tests/fuzz/run.sh MINUTES [TARGET...]
set -e
cd "$(dirname "$0")/../.."
minutes=${1:?minutes for each target}
shift
cmake --preset fuzz -D CMAKE_UNITY_BUILD=ON > /dev/null
cmake --build build/fuzz --target fuzzer fuzz_inputs
[ $# -gt 0 ] || set -- $(sed -n 's/^FUZZ_TARGET(\([a-z_]*\),.*/\1/p' tests/fuzz/targets.def)
status=0
for target; do
  corpus=build/fuzz/corpus/$target
  mkdir -p "$corpus"
  build/fuzz/tests/fuzz/fuzz_inputs --target "$target" --write-seeds "$corpus"
  echo "== $target"
  CUPOOL_TEST_FUZZ=$target build/fuzz/tests/fuzz/fuzzer -max_total_time=$((minutes * 60)) -timeout=10 \
    -rss_limit_mb=2048 -max_len=65536 -verbosity=0 -print_final_stats=1 -artifact_prefix="build/fuzz/corpus/$target-" \
    "$corpus" || status=1
done
exit $status
