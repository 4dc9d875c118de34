#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs everything on a machine with a GPU: each program of .gpu/ (made by build.sh and carried there)
# without and with the preload, compares results and counts, writes tables into $OUT (default ./out).
#   tests/gpu/run_all.sh                     all, 5 runs each, under 8 minutes
#   tests/gpu/run_all.sh torch thrust        some
#   tests/gpu/run_all.sh --runs 3 --env CUPOOL_BACKEND=malloc legacy_static
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
chmod +x .gpu/* 2>/dev/null
nvidia-smi -L || { echo "no GPU here" >&2; exit 2; }
# The hard limit above compare.py's own: nothing may run past the limit.
exec timeout --kill-after=10 480 python3 tests/gpu/programs/compare.py "$@"
