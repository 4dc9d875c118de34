// SPDX-License-Identifier: Apache-2.0
/* The exported dlsym, x86-64. glibc finds RTLD_NEXT by the return address, so a name that is not
 * ours has to reach the real function by a jump, with the caller's address still on the stack. */
        .text
        .type   cupool_dlsym, @function
        .p2align 4
cupool_dlsym:
        .cfi_startproc
        endbr64
        testq   %rsi, %rsi
        je      1f
        cmpb    $'c', (%rsi)
        jne     4f
        cmpb    $'u', 1(%rsi)
        je      6f
        jmp     1f
4:      cmpb    $'o', (%rsi)
        jne     5f
        cmpb    $'p', 1(%rsi)
        jne     1f
        cmpb    $'t', 2(%rsi)
        je      6f
        jmp     1f
5:      cmpb    $'N', (%rsi)
        jne     7f
        cmpb    $'v', 1(%rsi)
        jne     1f
        cmpb    $'E', 2(%rsi)
        jne     1f
        jmp     6f
7:      leaq    1(%rsi), %rax
        cmpb    $'P', (%rsi)
        cmovneq %rsi, %rax
        cmpb    $'M', (%rax)
        jne     1f
        cmpb    $'P', 1(%rax)
        jne     1f
        cmpb    $'I', 2(%rax)
        jne     1f
6:      movq    (%rsp), %rdx
        pushq   %rdi
        .cfi_adjust_cfa_offset 8
        pushq   %rsi
        .cfi_adjust_cfa_offset 8
        subq    $8, %rsp
        .cfi_adjust_cfa_offset 8
        call    cupool_dlsym_filter
        addq    $8, %rsp
        .cfi_adjust_cfa_offset -8
        popq    %rsi
        .cfi_adjust_cfa_offset -8
        popq    %rdi
        .cfi_adjust_cfa_offset -8
        testq   %rdx, %rdx
        jne     3f
        movq    %rax, %rdi
1:      movq    cupool_next_dlsym(%rip), %rax
        testq   %rax, %rax
        je      2f
        jmpq    *%rax
2:      pushq   %rdi
        .cfi_adjust_cfa_offset 8
        pushq   %rsi
        .cfi_adjust_cfa_offset 8
        subq    $8, %rsp
        .cfi_adjust_cfa_offset 8
        call    cupool_resolve_dlsym
        addq    $8, %rsp
        .cfi_adjust_cfa_offset -8
        popq    %rsi
        .cfi_adjust_cfa_offset -8
        popq    %rdi
        .cfi_adjust_cfa_offset -8
        jmpq    *%rax
3:      ret
        .cfi_endproc
        .size   cupool_dlsym, .-cupool_dlsym
        /* Under libc's versions: another preload looks for the next dlsym by dlvsym, which finds
         * nothing else. */
        .globl  cupool_dlsym_new, cupool_dlsym_old
        .type   cupool_dlsym_new, @function
        .type   cupool_dlsym_old, @function
        .set    cupool_dlsym_new, cupool_dlsym
        .set    cupool_dlsym_old, cupool_dlsym
        .symver cupool_dlsym_new, dlsym@@GLIBC_2.34
        .symver cupool_dlsym_old, dlsym@GLIBC_2.2.5
        .section .note.GNU-stack, "", @progbits
