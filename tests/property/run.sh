#!/bin/sh
# The long run: 100,000 random programs on all processors, some minutes. A seed that fails is
# printed with its program, made small.
# Usage: tests/property/run.sh [BUILD_FOLDER [COUNT [FIRST_SEED]]]
set -e
build=$(cd "${1:-build/dev}" && pwd)
exec "$build/tests/property/property_programs" --library "$build/libcupool.so" \
  --count "${2:-100000}" --first "${3:-random}" --jobs "$(nproc)"
