// How many entries newer_*.S has, and how large each is: for C++ and the assembler alike.
#pragma once

#define CUPOOL_NEWER_ENTRIES 32
#define CUPOOL_NEWER_ENTRY_SHIFT 4  // log2 of the bytes of one
