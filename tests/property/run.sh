#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The long run: 100,000 random programs on all processors, some minutes. A failing seed is printed
# with its shrunk program.
# Usage: tests/property/run.sh [BUILD_FOLDER [COUNT [FIRST_SEED]]]
set -e
build=$(cd "${1:-build/dev}" && pwd)
exec "$build/tests/property/property_programs" --library "$build/libcupool.so" \
  --count "${2:-100000}" --first "${3:-random}" --jobs "$(nproc)"
