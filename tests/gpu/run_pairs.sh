#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a pair of cudaMalloc and cudaFree costs on a real GPU, against legacy and against the allocators
# that a program could link instead, side by side in alternating runs: one thread and many, GPU idle and
# busy, single calls, idle memory, whole programs, start-up. Fails if a figure that is asked for is
# missed. Programs come from build.sh, whose head says what RMM it takes; carry .gpu to the machine.
#   tests/gpu/run_pairs.sh                    all, 5 rounds, under 25 minutes, into $OUT (default ./out)
#   tests/gpu/run_pairs.sh single threads     some of: single threads busy route calls idle programs startup
#   tests/gpu/run_pairs.sh --budget 580 busy route calls idle programs startup
#   tests/gpu/run_pairs.sh --beside OLD/libcupool.so beside    another build, in turn with this one
# In two halves where a command may last ten minutes: "single threads", then the others.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
chmod +x .gpu/* 2>/dev/null
nvidia-smi -L || { echo "no GPU here" >&2; exit 2; }
# The hard limit above pairs.py's own budget: nothing may run past the limit.
exec timeout --kill-after=10 "${CUPOOL_TEST_LIMIT:-1700}" python3 -u tests/gpu/pairs/pairs.py "$@"
