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

// Within it, what the thread allocates is the driver's, which has a heap of its own here.
class DriversHeap {
 public:
  DriversHeap() { heap_is_empty = false; }
  ~DriversHeap() { heap_is_empty = was_empty_; }
  DriversHeap(const DriversHeap&) = delete;
  DriversHeap& operator=(const DriversHeap&) = delete;

 private:
  const bool was_empty_ = heap_is_empty;
};

}  // namespace cupool::test
