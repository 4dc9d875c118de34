// SPDX-License-Identifier: Apache-2.0
// The driver's life: before cuInit, ready, after exit handlers ran, or in a forked child.
#pragma once

#include <cuda.h>

namespace cupool::sim {

/// CUDA_SUCCESS when an initialised driver can serve, otherwise why not. Lock-free: a forked
/// child may find the world's lock held by a thread that it does not have.
CUresult alive();

/// Why even functions that need no cuInit cannot serve; they can almost always.
CUresult initialise(unsigned flags);

/// An error after which the driver answers nothing else: CUDA_ERROR_DEINITIALIZED, or a sticky
/// error of every context. Takes the world's lock.
void fail_for_good(CUresult code);

}  // namespace cupool::sim
