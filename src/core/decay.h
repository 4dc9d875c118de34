// Idle memory goes back to the device after a while (CUPOOL_DECAY_MS), little by little, so that no
// call of the program finds the driver taken for long. Read with docs/design.md, section Engine.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/allocator.h"

namespace cupool::core {

/// For one thread of ours, outside of any call of the program's.
class Decay {
 public:
  explicit Decay(Allocator& allocator) : allocator_(allocator) {}

  /// Does the next part of a step: a fence, or what it takes to give a slice back. True: the step
  /// goes on, after a pause. What was idle for BlockCache::kDecaySteps steps is given back. To be
  /// called while no context can be destroyed.
  bool go_on();

 private:
  /// Given back at once; the larger, the longer the driver is taken.
  static constexpr std::uint64_t kSlice = 64ull << 20;

  void begin();
  bool give_back_some(Context& context);
  bool trim_some(Context& context);

  Allocator& allocator_;
  std::vector<Context*> contexts_;  ///< of this step, by device
  std::size_t next_ = 0;
  bool looked_ = false;    ///< for what the threads of this context left
  bool trimming_ = false;  ///< its device's pools: the last part
  std::array<std::uint64_t, stats::kMaxDevices> released_{};  ///< to each device's pools
};

}  // namespace cupool::core
