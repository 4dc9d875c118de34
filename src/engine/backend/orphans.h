// SPDX-License-Identifier: Apache-2.0
// Pool memory without a context: of one that is gone, since pools outlive contexts, or refused by
// the driver when it was to go back.
#pragma once

#include <atomic>
#include <mutex>
#include <vector>

#include "cuda/driver.h"
#include "engine/block/block.h"
#include "util/lock_order.h"

namespace cupool::engine {

class PoolBackend;
class StreamSource;

/// Of cupool's pools and of the default pool. Orphans are released in the next context of the
/// device that cupool meets; until then their addresses belong to nobody. One per device.
/// Thread-safe.
class Orphans {
 public:
  /// Takes over the record of such memory, which is kept where there is no host memory for a list.
  void add(Block& record);
  /// As add(), for memory without a record. If there is no host memory for one, the memory stays
  /// allocated for good.
  void add(CUdeviceptr address);
  /// Releases the orphans to where they came from, and trims `pools` (null: none).
  void release(const cuda::Driver& driver, StreamSource& context, PoolBackend* pools);
  bool contains(CUdeviceptr address) const;

 private:
  bool note_locked(CUdeviceptr address);

  mutable util::Ranked<util::LockRank::orphans> mutex_;
  std::vector<CUdeviceptr> addresses_;
  BlockList records_;
  std::atomic<bool> any_{false};
};

}  // namespace cupool::engine
