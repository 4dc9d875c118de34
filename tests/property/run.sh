#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The long run: 100,000 random programs on all processors, some minutes, then 2,000 with a theme, and
# an hour of programs in one process (README.md). A failing seed is printed with its shrunk program.
# Usage: tests/property/run.sh [BUILD_FOLDER [COUNT [FIRST_SEED [THEMED_COUNT [SOAK_SECONDS]]]]]
set -e
build=$(cd "${1:-build/dev}" && pwd)
programs="$build/tests/property/property_programs --library $build/libcupool.so --jobs $(nproc)"
first="${3:-random}"
$programs --count "${2:-100000}" --first "$first"
$programs --count "${4:-2000}" --first "$first" --wide
exec $programs --soak "${5:-3600}" --first "$first"
