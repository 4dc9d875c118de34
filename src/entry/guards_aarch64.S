// SPDX-License-Identifier: Apache-2.0
/* The guards in front of functions that are newer than this library, and of those of MPI, aarch64: everything
 * that a caller may pass is as it was when the function itself begins. */
#include "guards.h"

        .text
        .globl  cupool_newer_entries
        .hidden cupool_newer_entries
        .type   cupool_newer_entries, %function
        .p2align 4
cupool_newer_entries:
        .cfi_startproc
        .set    index, 0
        .rept   CUPOOL_NEWER_ENTRIES
        .p2align CUPOOL_NEWER_ENTRY_SHIFT
        hint    #34                     /* bti c, nothing on older processors */
        mov     x16, #index
        b       cupool_guard
        .set    index, index + 1
        .endr
        .p2align 4
        .cfi_endproc
        .size   cupool_newer_entries, .-cupool_newer_entries

        .type   cupool_guard, %function
cupool_guard:
        .cfi_startproc
        stp     x29, x30, [sp, #-224]!
        .cfi_adjust_cfa_offset 224
        .cfi_rel_offset x29, 0
        .cfi_rel_offset x30, 8
        mov     x29, sp
        stp     x0, x1, [sp, #16]
        stp     x2, x3, [sp, #32]
        stp     x4, x5, [sp, #48]
        stp     x6, x7, [sp, #64]
        str     x8, [sp, #80]
        stp     q0, q1, [sp, #96]
        stp     q2, q3, [sp, #128]
        stp     q4, q5, [sp, #160]
        stp     q6, q7, [sp, #192]
        mov     x0, x16                 /* the guard's number */
        mov     x1, x30                 /* the caller */
        bl      cupool_guard_called
        mov     x16, x0
        ldp     x0, x1, [sp, #16]
        ldp     x2, x3, [sp, #32]
        ldp     x4, x5, [sp, #48]
        ldp     x6, x7, [sp, #64]
        ldr     x8, [sp, #80]
        ldp     q0, q1, [sp, #96]
        ldp     q2, q3, [sp, #128]
        ldp     q4, q5, [sp, #160]
        ldp     q6, q7, [sp, #192]
        ldp     x29, x30, [sp], #224
        .cfi_adjust_cfa_offset -224
        .cfi_restore x29
        .cfi_restore x30
        br      x16
        .cfi_endproc
        .size   cupool_guard, .-cupool_guard
        /* One to each name of a function: MPI_NAME and PMPI_NAME, by turns. */
#define CUPOOL_MPI_ENTRY(symbol) \
        .globl symbol; .type symbol, %function; .p2align CUPOOL_NEWER_ENTRY_SHIFT; \
symbol: .cfi_startproc; hint 34; mov x16, index; b cupool_guard; \
        .cfi_endproc; .size symbol, .-symbol; .set index, index + 1
#define CUPOOL_MPI_CALL(name) CUPOOL_MPI_ENTRY(MPI_##name); CUPOOL_MPI_ENTRY(PMPI_##name);
#define CUPOOL_MPI_COMPLETION(name) CUPOOL_MPI_CALL(name)
        .globl  cupool_mpi_entries
        .hidden cupool_mpi_entries
        .p2align CUPOOL_NEWER_ENTRY_SHIFT
cupool_mpi_entries:
        .set    index, CUPOOL_FIRST_MPI_ENTRY
#include "mpi_calls.def"
        .section .note.GNU-stack, "", %progbits
