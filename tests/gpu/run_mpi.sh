#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Two ranks of CUDA-aware MPI that allocate in the loop: are they right under cupool, in every size not
# slower than without it, and do allocations cost them no more than a program without MPI? Programs come
# from build.sh, whose head says what MPI it takes; carry .gpu to the machine.
#   tests/gpu/run_mpi.sh                    5 rounds, under 5 minutes, into $OUT (default ./out)
#   tests/gpu/run_mpi.sh --rounds 3 --gpus 2 kernels
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
chmod +x .gpu/* .gpu/mpi/bin/* 2>/dev/null
nvidia-smi -L || { echo "no GPU here" >&2; exit 2; }
exec timeout --kill-after=10 "${CUPOOL_TEST_LIMIT:-320}" python3 -u tests/gpu/programs/mpi.py "$@"
