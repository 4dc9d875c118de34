// SPDX-License-Identifier: Apache-2.0
// RDMA libraries: communication libraries whose network and storage hardware reads and writes
// device memory outside CUDA's ordering. They keep memory registered by address, and notice its end
// by the driver's cuMemFree. They do not notice the reuse of a pool block (contract 8).
#pragma once

namespace cupool::engine {

/// File name of a loaded RDMA library (MPI, UCX, libfabric, GDRCopy), or null. Searches the objects
/// of the process. Thread-safe.
const char* loaded_rdma_library();

/// Whether objects were added to the process since the last call of any thread. True for the first
/// call; false for a call concurrent with another. Costs tens of nanoseconds. Thread-safe.
bool libraries_were_added();

/// Whether objects were removed from the process since the last call of any thread. May be true
/// without reason for the first call and for concurrent calls. Thread-safe.
bool libraries_were_removed();

/// The functions above are safe in a process that forks meanwhile: the child inherits no held lock
/// from them.

/// Whether `path` names an RDMA library; for tests.
bool is_rdma_library(const char* path);

}  // namespace cupool::engine
