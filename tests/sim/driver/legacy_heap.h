// SPDX-License-Identifier: Apache-2.0
// Legacy device memory of one context (cuMemAlloc): small blocks share 2 MiB chunks, blocks from
// 2 MiB up have chunks of their own, as measured with an H200.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>

namespace cupool::sim {

struct Device;

class LegacyHeap {
 public:
  /// 0 when the device has no memory for it. `grew` tells whether a chunk was taken.
  uintptr_t allocate(Device& device, size_t bytes, bool* grew);

  /// Returns whether a chunk went back to the device.
  bool release(Device& device, uintptr_t address, size_t bytes);

  void release_all(Device& device);

 private:
  struct Chunk {
    size_t live = 0;
    std::map<uintptr_t, size_t> holes;
  };

  uintptr_t take_hole(uintptr_t chunk, size_t bytes);

  std::map<uintptr_t, Chunk> chunks_;
  std::set<uintptr_t> with_holes_;
  std::map<uintptr_t, size_t> large_;
};

}  // namespace cupool::sim
