// SPDX-License-Identifier: Apache-2.0
// Libraries whose presence changes how the process is served.
//
// RDMA libraries: communication libraries whose network and storage hardware reads and writes
// device memory outside CUDA's ordering. They keep memory registered by address, and notice its end
// by the driver's cuMemFree. They do not notice the reuse of a pool block (contract 8).
//
// Libraries that submit work by routes of their own: no lane (engine/reclaim/lane).
#pragma once

namespace cupool::engine {

/// File name of a loaded RDMA library (MPI, UCX, libfabric, GDRCopy, verbs that an object of the
/// program needs), or null. Searches the objects of the process. Thread-safe.
const char* loaded_rdma_library();

/// File name, without its folder, of the first RDMA library that loaded_rdma_library() found in
/// this process, or null. Stays when the library is unloaded. Takes no lock. Thread-safe.
const char* noted_rdma_library();

/// The same for a library that submits work unseen (OptiX, video).
const char* loaded_unseen_work_library();

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

/// The file name of an object that uses RDMA beside MPI: it needs a library below MPI and is no
/// part of it, or is a library like MPI. Null: of the RDMA libraries in the process only MPI is
/// used, all others by MPI alone. Reads the lists of needed libraries of all objects. Valid until
/// the object is unloaded. Thread-safe.
const char* rdma_user_beside_mpi();

/// The path of the loaded library of MPI, or null; as long as it stays loaded.
const char* loaded_mpi_library();

/// Whether the file name of `path` is that of a part of MPI, or of a library below it.
bool is_part_of_mpi(const char* path);

}  // namespace cupool::engine
