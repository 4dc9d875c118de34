// SPDX-License-Identifier: Apache-2.0
/* The exported dlsym, aarch64. glibc finds RTLD_NEXT by the return address, so a name that is not
 * ours has to reach the real function by a branch, with the caller's address still in x30: through
 * x16, from which one may branch to the beginning of a function (bti c) whichever pages are guarded. */
        .text
        .type   cupool_dlsym, %function
        .p2align 4
cupool_dlsym:
        .cfi_startproc
        hint    #34                     /* bti c, nothing on older processors */
        cbz     x1, 1f
        ldrb    w9, [x1]
        cbz     w9, 1f
        ldrb    w10, [x1, #1]
        cmp     w9, #'c'
        b.ne    4f
        cmp     w10, #'u'
        b.eq    6f
        b       1f
4:      cmp     w9, #'o'
        b.ne    5f
        cmp     w10, #'p'
        b.ne    1f
        ldrb    w9, [x1, #2]
        cmp     w9, #'t'
        b.eq    6f
        b       1f
5:      cmp     w9, #'N'
        b.ne    7f
        cmp     w10, #'v'
        b.ne    1f
        ldrb    w9, [x1, #2]
        cmp     w9, #'E'
        b.eq    6f
        b       1f
7:      cmp     w9, #'P'
        cinc    x10, x1, eq
        ldrb    w9, [x10]
        cmp     w9, #'M'
        b.ne    1f
        ldrb    w9, [x10, #1]
        cmp     w9, #'P'
        b.ne    1f
        ldrb    w9, [x10, #2]
        cmp     w9, #'I'
        b.ne    1f
6:      stp     x29, x30, [sp, #-32]!
        .cfi_adjust_cfa_offset 32
        .cfi_rel_offset x29, 0
        .cfi_rel_offset x30, 8
        stp     x0, x1, [sp, #16]
        mov     x29, sp
        mov     x2, x30
        bl      cupool_dlsym_filter
        mov     x10, x0
        mov     x11, x1
        ldp     x0, x1, [sp, #16]
        ldp     x29, x30, [sp], #32
        .cfi_adjust_cfa_offset -32
        .cfi_restore x29
        .cfi_restore x30
        mov     x0, x10
        cbz     x11, 1f
        ret
1:      adrp    x16, cupool_next_dlsym
        ldr     x16, [x16, #:lo12:cupool_next_dlsym]
        cbz     x16, 2f
        br      x16
2:      stp     x29, x30, [sp, #-32]!
        .cfi_adjust_cfa_offset 32
        .cfi_rel_offset x29, 0
        .cfi_rel_offset x30, 8
        stp     x0, x1, [sp, #16]
        mov     x29, sp
        bl      cupool_resolve_dlsym
        mov     x16, x0
        ldp     x0, x1, [sp, #16]
        ldp     x29, x30, [sp], #32
        .cfi_adjust_cfa_offset -32
        .cfi_restore x29
        .cfi_restore x30
        br      x16
        .cfi_endproc
        .size   cupool_dlsym, .-cupool_dlsym
        /* Under libc's versions: another preload looks for the next dlsym by dlvsym, which finds
         * nothing else. */
        .globl  cupool_dlsym_new, cupool_dlsym_old
        .type   cupool_dlsym_new, %function
        .type   cupool_dlsym_old, %function
        .set    cupool_dlsym_new, cupool_dlsym
        .set    cupool_dlsym_old, cupool_dlsym
        .symver cupool_dlsym_new, dlsym@@GLIBC_2.34
        .symver cupool_dlsym_old, dlsym@GLIBC_2.17
        .section .note.GNU-stack, "", %progbits
