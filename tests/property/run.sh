#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The long run: 100,000 random programs on all processors, some minutes, and then 2,000 with a theme
# (README.md). A failing seed is printed with its shrunk program.
# Usage: tests/property/run.sh [BUILD_FOLDER [COUNT [FIRST_SEED [THEMED_COUNT]]]]
set -e
build=$(cd "${1:-build/dev}" && pwd)
programs="$build/tests/property/property_programs --library $build/libcupool.so --jobs $(nproc)"
$programs --count "${2:-100000}" --first "${3:-random}"
exec $programs --count "${4:-2000}" --first "${3:-random}" --wide
