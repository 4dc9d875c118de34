# SPDX-License-Identifier: Apache-2.0
"""Pairs of allocation and release from Python: PyTorch's and CuPy's own allocators, and the same calls
with these off, where each is a cudaMalloc and a cudaFree.

pairs_python.py torch|cupy own|plain [BYTES]: ns_per_pair, the median of slices. Python itself is most
of it, the same on both sides: only the difference and the ratio between two runs mean something.
"""
import os
import statistics
import sys
import time

LIBRARY, KIND = sys.argv[1:3]
BYTES = int(sys.argv[3]) if len(sys.argv) > 3 else 65536
SLICES = 21
SLICE_SECONDS = 0.02


def torch_pair():
    if KIND == "plain":
        os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
    import torch
    device = torch.device("cuda", 0)
    empty, kind = torch.empty, torch.uint8

    def pair():
        empty(BYTES, dtype=kind, device=device)

    return pair, lambda: torch.cuda.max_memory_reserved()


def cupy_pair():
    import cupy
    pool = cupy.get_default_memory_pool()
    if KIND == "plain":
        cupy.cuda.set_allocator(None)
    alloc = cupy.cuda.alloc

    def pair():
        alloc(BYTES)

    return pair, pool.total_bytes


def main():
    pair, reserved = {"torch": torch_pair, "cupy": cupy_pair}[LIBRARY]()
    slices = []
    for i in range(-3, SLICES):
        count = 0
        begin = time.perf_counter()
        while time.perf_counter() - begin < SLICE_SECONDS:
            for _ in range(16):
                pair()
            count += 16
        if i >= 0:
            slices.append((time.perf_counter() - begin) / count * 1e9)
    print(f"info own_reserved_bytes={reserved()}")
    print(f"time ns_per_pair={statistics.median(slices):.1f}")


main()
