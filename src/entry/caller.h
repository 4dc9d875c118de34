// Who calls a hook: the program, or a library of the CUDA toolkit on its own behalf.
#pragma once

namespace cupool::entry {

/// Whether the code at `address` (a return address) belongs to a library of the CUDA toolkit other
/// than the driver and the runtime: cuBLAS, cuDNN, NCCL, ... They carry their own runtime, so that
/// their calls come from themselves; host memory that they map for their kernels is their own
/// affair, which no program waits for by freeing device memory. Thread-safe.
bool is_cuda_library(const void* address);

/// The file name of the object that the code at `address` belongs to; "?" if there is none.
const char* object_of(const void* address);

}  // namespace cupool::entry
