#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Processes that fit on one GPU together without cupool: do they fit with it, too? Programs come from
# build.sh; carry .gpu to the machine.
#   tests/gpu/run_neighbours.sh                 under 90 s, into $OUT/neighbours.txt (default ./out)
#   tests/gpu/run_neighbours.sh --each 3 --peak-mib 2048 --seconds 10
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
chmod +x .gpu/* 2>/dev/null
nvidia-smi -L || { echo "no GPU here" >&2; exit 2; }
exec timeout --kill-after=10 "${CUPOOL_TEST_LIMIT:-90}" python3 -u tests/gpu/proofs/neighbours.py "$@"
