#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Ordered frees on a real GPU: proof (no foreign word, host memory as with legacy) and figures, without
# cupool, with auto, ordered and sync, and with the deliberately wrong engine. Programs come from build.sh.
#   tests/gpu/run_ordered.sh                       all, about 5 minutes, into $OUT (default ./out)
#   tests/gpu/run_ordered.sh stress reliance       some of: stress lane order micro reliance overlap footprint
#                                              programs one_lane
#   tests/gpu/run_ordered.sh --seed 7 --env CUPOOL_BACKEND=malloc stress
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
chmod +x .gpu/* 2>/dev/null
nvidia-smi -L || { echo "no GPU here" >&2; exit 2; }
# The hard limit above ordered.py's own budget: nothing may run past the limit.
exec timeout --kill-after=10 "${CUPOOL_TEST_LIMIT:-480}" python3 -u tests/gpu/proofs/ordered.py "$@"
