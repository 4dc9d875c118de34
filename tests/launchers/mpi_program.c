/* SPDX-License-Identifier: Apache-2.0 */
/* An MPI program that uses the GPU. It is compiled by the tested MPI's own mpicc, which has no headers of
   CUDA: the two functions are declared here. */
#include <mpi.h>
#include <stddef.h>
#include <stdio.h>

int cudaMalloc(void** block, size_t bytes);
int cudaFree(void* block);

int main(int argc, char** argv) {
  int rank = -1;
  int ranks = -1;
  int sum = 0;
  int errors = 0;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  for (int i = 0; i < 10; ++i) {
    void* block = NULL;
    errors += cudaMalloc(&block, 4096) != 0;
    errors += cudaFree(block) != 0;
  }
  MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  printf("rank %d of %d: sum=%d errors=%d\n", rank, ranks, sum, errors);
  MPI_Finalize();
  return errors;
}
