#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The long explorations: also the pointer map and the lane with each memory order weakened, some
# minutes.
# Usage: tests/explorer/run.sh [BUILD_FOLDER]
set -e
for program in "${1:-build/dev}"/tests/explorer/explorer_*tests; do
  "$program" --gtest_also_run_disabled_tests
done
