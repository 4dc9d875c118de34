// SPDX-License-Identifier: Apache-2.0
/* The guards in front of functions that are newer than this library, and of those of MPI, x86-64: everything
 * that a caller may pass is as it was when the function itself begins. */
#include "guards.h"

        .text
        .globl  cupool_newer_entries
        .hidden cupool_newer_entries
        .type   cupool_newer_entries, @function
        .p2align 4
cupool_newer_entries:
        .cfi_startproc
        .set    index, 0
        .rept   CUPOOL_NEWER_ENTRIES
        .p2align CUPOOL_NEWER_ENTRY_SHIFT
        .cfi_def_cfa_offset 8
        endbr64
        pushq   $index
        .cfi_adjust_cfa_offset 8
        jmp     cupool_guard
        .set    index, index + 1
        .endr
        .p2align 4
        .size   cupool_newer_entries, .-cupool_newer_entries
        .cfi_endproc

        .type   cupool_guard, @function
cupool_guard:
        .cfi_startproc
        .cfi_def_cfa_offset 16
        pushq   %rax
        .cfi_adjust_cfa_offset 8
        pushq   %rdi
        .cfi_adjust_cfa_offset 8
        pushq   %rsi
        .cfi_adjust_cfa_offset 8
        pushq   %rdx
        .cfi_adjust_cfa_offset 8
        pushq   %rcx
        .cfi_adjust_cfa_offset 8
        pushq   %r8
        .cfi_adjust_cfa_offset 8
        pushq   %r9
        .cfi_adjust_cfa_offset 8
        subq    $136, %rsp
        .cfi_adjust_cfa_offset 136
        movups  %xmm0, (%rsp)
        movups  %xmm1, 16(%rsp)
        movups  %xmm2, 32(%rsp)
        movups  %xmm3, 48(%rsp)
        movups  %xmm4, 64(%rsp)
        movups  %xmm5, 80(%rsp)
        movups  %xmm6, 96(%rsp)
        movups  %xmm7, 112(%rsp)
        movq    192(%rsp), %rdi         /* the guard's number */
        movq    200(%rsp), %rsi         /* the caller */
        call    cupool_guard_called
        movq    %rax, %r11
        movups  (%rsp), %xmm0
        movups  16(%rsp), %xmm1
        movups  32(%rsp), %xmm2
        movups  48(%rsp), %xmm3
        movups  64(%rsp), %xmm4
        movups  80(%rsp), %xmm5
        movups  96(%rsp), %xmm6
        movups  112(%rsp), %xmm7
        addq    $136, %rsp
        .cfi_adjust_cfa_offset -136
        popq    %r9
        .cfi_adjust_cfa_offset -8
        popq    %r8
        .cfi_adjust_cfa_offset -8
        popq    %rcx
        .cfi_adjust_cfa_offset -8
        popq    %rdx
        .cfi_adjust_cfa_offset -8
        popq    %rsi
        .cfi_adjust_cfa_offset -8
        popq    %rdi
        .cfi_adjust_cfa_offset -8
        popq    %rax
        .cfi_adjust_cfa_offset -8
        addq    $8, %rsp
        .cfi_adjust_cfa_offset -8
        jmpq    *%r11
        .cfi_endproc
        .size   cupool_guard, .-cupool_guard
        /* One to each name of a function: MPI_NAME and PMPI_NAME, by turns. */
#define CUPOOL_MPI_ENTRY(symbol) \
        .globl symbol; .type symbol, @function; .p2align CUPOOL_NEWER_ENTRY_SHIFT; \
symbol: .cfi_startproc; endbr64; pushq $index; .cfi_adjust_cfa_offset 8; jmp cupool_guard; \
        .cfi_endproc; .size symbol, .-symbol; .set index, index + 1
#define CUPOOL_MPI_CALL(name) CUPOOL_MPI_ENTRY(MPI_##name); CUPOOL_MPI_ENTRY(PMPI_##name);
#define CUPOOL_MPI_COMPLETION(name) CUPOOL_MPI_CALL(name)
        .globl  cupool_mpi_entries
        .hidden cupool_mpi_entries
        .p2align CUPOOL_NEWER_ENTRY_SHIFT
cupool_mpi_entries:
        .set    index, CUPOOL_FIRST_MPI_ENTRY
#include "mpi_calls.def"
        .section .note.GNU-stack, "", @progbits
