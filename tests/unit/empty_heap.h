// SPDX-License-Identifier: Apache-2.0
// A heap that gives nothing, for a thread and a while. Its operators are those of the whole test
// program (engine_host_memory_short_heap_test.cpp).
#pragma once

namespace cupool::test {

inline thread_local bool heap_is_empty = false;

// While it lives, each allocation of this thread fails. Records of blocks are aligned, and are not
// concerned.
struct EmptyHeap {
  EmptyHeap() { heap_is_empty = true; }
  ~EmptyHeap() { heap_is_empty = false; }
  EmptyHeap(const EmptyHeap&) = delete;
  EmptyHeap& operator=(const EmptyHeap&) = delete;
};

}  // namespace cupool::test
