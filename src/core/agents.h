// Agents that CUDA does not order: network and storage hardware that reads and writes device memory
// on behalf of a communication library. Such libraries keep memory registered by address, and
// notice by the driver's cuMemFree when it goes; a block from a driver's pool goes unnoticed.
#pragma once

namespace cupool::core {

/// The file name of a loaded library that lets other agents into device memory (MPI, UCX,
/// libfabric, GDRCopy), or null. Looks through the objects of the process; thread-safe.
const char* loaded_agent_library();

/// Whether objects were added to the process since the last call of any thread; the first call says
/// yes, and one beside another says no. Costs tens of nanoseconds. Thread-safe.
bool libraries_were_added();

/// Around a fork, before it and after it in both processes: the functions above hold a lock of the
/// dynamic linker's, which would stay held in the child for ever. May be nested.
void hold_looks_at_libraries();
void resume_looks_at_libraries();

/// Whether `path` names such a library; for tests.
bool is_agent_library(const char* path);

}  // namespace cupool::core
