// SPDX-License-Identifier: Apache-2.0
// The test kernels as a module of their own, for programs that load it from CUPOOL_TEST_MODULE.
#include "kernels.cuh"
