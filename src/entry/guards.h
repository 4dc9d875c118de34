// SPDX-License-Identifier: Apache-2.0
// Guards: entries in assembly that notify the engine and go on to the real function with every
// argument in place. Numbers for C++ and the assembler.
#pragma once

// Guards of newer functions (entry/newer): how many, and the size of an entry in guards_*.S.
#define CUPOOL_NEWER_ENTRIES 32
#define CUPOOL_NEWER_ENTRY_SHIFT 4  // log2 of an entry's bytes

// Number of the first guard of MPI's functions (entry/mpi_calls), two to each line of the table.
#define CUPOOL_FIRST_MPI_ENTRY 1024
