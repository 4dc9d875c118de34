// SPDX-License-Identifier: Apache-2.0
// Number and size of the entries in newer_*.S, for C++ and the assembler.
#pragma once

#define CUPOOL_NEWER_ENTRIES 32
#define CUPOOL_NEWER_ENTRY_SHIFT 4  // log2 of an entry's bytes
