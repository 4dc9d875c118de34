#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The contract on a real GPU: memory to the last byte, peers, contexts, captures, processes, PyTorch;
# each program without cupool and with it. Programs come from build.sh; carry .gpu to the machine.
#   tests/gpu/run_contract.sh one              what one GPU is enough for, under 150 s, into $OUT
#   tests/gpu/run_contract.sh two              what needs two GPUs, under 120 s
#   tests/gpu/run_contract.sh one fill life    programs whose names contain one of these words
#   tests/gpu/run_contract.sh two --env CUPOOL_FREE_MODE=sync peers
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
chmod +x .gpu/* 2>/dev/null
nvidia-smi -L || { echo "no GPU here" >&2; exit 2; }
# The hard limit above contract.py's own budget: nothing may run past the limit.
exec timeout --kill-after=10 "${CUPOOL_TEST_LIMIT:-180}" python3 -u tests/gpu/proofs/contract/contract.py "$@"
