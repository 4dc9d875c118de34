#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The long explorations: also the pointer map with each memory order weakened, some minutes.
# Usage: tests/explorer/run.sh [BUILD_FOLDER]
set -e
exec "${1:-build/dev}/tests/explorer/explorer_tests" --gtest_also_run_disabled_tests
