# SPDX-License-Identifier: Apache-2.0
"""A CuPy program with CuPy's own memory pool off: every array is a cudaMalloc and a cudaFree.

Element-wise operations, reductions, sort and scan only: libraries such as cuBLAS would allocate on
their own, and the number of allocations that this program counts has to be exact.

cupy_loop.py [steps] [pool|plain|async] [stream]: "pool" keeps CuPy's own pool, which cupool is measured against;
"plain" turns it off without the counting, which is Python and takes time; "async" takes CuPy's MemoryAsyncPool,
which calls cudaMallocAsync for every array. With "stream" the steps run on a non-blocking stream.
"""
import gc
import sys
import time

import cupy

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 200
POOL = "pool" in sys.argv[2:]
PLAIN = "plain" in sys.argv
ASYNC = "async" in sys.argv
ITEMS = 1 << 20
mallocs = 0


def counting_allocator(size):
    """CuPy's plain cudaMalloc (what set_allocator(None) uses), counted."""
    global mallocs
    if size:
        mallocs += 1
    return cupy.cuda.memory._malloc(size)


def step(seed):
    x = cupy.arange(ITEMS, dtype=cupy.uint32)
    x = (x ^ cupy.uint32(seed)) * cupy.uint32(2654435761)
    x ^= x >> cupy.uint32(15)
    y = cupy.sort(x)
    z = cupy.cumsum(y, dtype=cupy.uint64)
    a = cupy.sqrt(y.astype(cupy.float64)) + 1.0
    mask = a > 1000.0
    b = cupy.where(mask, a, -a)
    return (z, b, x)


def main():
    if PLAIN:
        cupy.cuda.set_allocator(None)
    elif ASYNC:
        cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)
    elif not POOL:
        cupy.cuda.set_allocator(counting_allocator)
    if "stream" in sys.argv:
        cupy.cuda.Stream(non_blocking=True).use()
    checksum = 0
    times = []
    for i in range(STEPS + 20):
        begin = time.perf_counter()
        z, b, x = step(i)
        partial = z.sum(), x.max()
        del z, b, x
        cupy.cuda.get_current_stream().synchronize()
        times.append(time.perf_counter() - begin)
        for value in partial:
            checksum = (checksum * 1099511628211 + int(value)) % 2**64
        del partial, value
    gc.collect()
    times = sorted(times[20:])
    print(f"result checksum={checksum}")
    if not POOL and not PLAIN and not ASYNC:
        print(f"counts mallocs={mallocs}")
    print(f"time us_per_step={times[len(times) // 2] * 1e6:.3f}")


main()
