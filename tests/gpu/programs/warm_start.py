# SPDX-License-Identifier: Apache-2.0
"""Imports PyTorch, says "ready", waits for a line, then runs a script.

So imports (seconds, on the CPU) of several runs go side by side while nothing is timed, and the
timed parts one after another, undisturbed.

warm_start.py own|plain SCRIPT [ARGUMENTS]: "own" leaves PyTorch's caching allocator on.
"""
import os
import runpy
import sys

import torch

VARIABLE = "PYTORCH_NO_CUDA_MEMORY_CACHING"


def main():
    own = sys.argv[1] == "own"
    print("ready", flush=True)
    if not sys.stdin.readline():
        return
    os.environ[VARIABLE] = "1"
    if own:
        # PyTorch asks whether the variable exists, not what it says, and torch_train.py sets it
        # where os.environ lacks it. So: there for Python, gone for C.
        os.unsetenv(VARIABLE)
    sys.argv = sys.argv[2:]
    runpy.run_path(sys.argv[0], run_name="__main__")
    print(f"info torch_reserved_bytes={torch.cuda.max_memory_reserved()}")


main()
