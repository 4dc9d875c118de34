! SPDX-License-Identifier: Apache-2.0
! An MPI program in Fortran that uses the GPU. Its calls reach MPI by the functions of C below them.
program mpi_program
  use mpi
  use iso_c_binding
  implicit none
  interface
    integer(c_int) function cuda_malloc(block, bytes) bind(C, name="cudaMalloc")
      import :: c_int, c_ptr, c_size_t
      type(c_ptr) :: block
      integer(c_size_t), value :: bytes
    end function
    integer(c_int) function cuda_free(block) bind(C, name="cudaFree")
      import :: c_int, c_ptr
      type(c_ptr), value :: block
    end function
  end interface
  type(c_ptr) :: block
  integer :: rank, total, code, i
  integer(c_int) :: errors
  errors = 0
  call MPI_Init(code)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, code)
  do i = 1, 10
    errors = errors + cuda_malloc(block, 4096_c_size_t) + cuda_free(block)
  end do
  call MPI_Allreduce(rank, total, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, code)
  print '(A,I0)', "sum=", total + errors
  call MPI_Finalize(code)
end program
