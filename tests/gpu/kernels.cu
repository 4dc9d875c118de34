// The test kernels as a module of their own, for programs that load it from CUPOOL_TEST_MODULE.
#include "kernels.cuh"
