// SPDX-License-Identifier: Apache-2.0
// Programmatic dependent launches: kernels that may begin before the kernel before them in their
// stream has ended, also across an event of that stream or of its context, and a wait for its own
// (measured). In a lane, one must not overlap the last work on a block that was handed out again,
// so the first one after each mark is serialised; outside, where the mode is `auto`, the first one
// in each stream behind a free of its thread, whose work before the free would be complete without
// cupool. The attribute only permits the overlap.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "cuda/api.h"
#include "cuda/driver.h"

namespace cupool::engine {

/// A launch by cuLaunchKernelEx, from before the driver's call to after it, and after a second
/// attempt. Thread-safe.
class DependentLaunch {
 public:
  /// Whether the program permits that the launch begins before the kernel before it has ended.
  static bool permits_overlap(const void* configuration) {
    const auto* const given = static_cast<const cuda::LaunchConfiguration*>(configuration);
    if (given == nullptr || given->attributes == nullptr) return false;
    for (unsigned i = 0; i < given->attribute_count; ++i) {
      if (given->attributes[i].id == cuda::kProgrammaticStreamSerialization) return true;
    }
    return false;
  }

  /// `stream`: explicit handle of the launch. `behind_free`: it is the first one there behind a
  /// free of the calling thread, as far as is known (LaunchOrder::is_first()).
  DependentLaunch(const cuda::Driver& driver, const void* configuration, CUstream stream,
                  bool behind_free)
      : configuration_(static_cast<const cuda::LaunchConfiguration*>(configuration)) {
    if (permits_overlap(configuration)) serialise(driver, stream, behind_free);
  }
  DependentLaunch(const DependentLaunch&) = delete;
  DependentLaunch& operator=(const DependentLaunch&) = delete;

  /// The configuration to pass to the driver: the program's, or a copy without the attribute.
  const void* configuration() const { return serialised_ ? &copy_ : configuration_; }
  /// Whether the launch begins behind all work that was submitted to its stream, though the program
  /// permits the overlap. False: perhaps not.
  bool is_serialised() const { return waited_ || (serialised_ && !may_capture_); }
  /// The driver has taken the launch: the next ones may rely on it.
  void submitted() const {
    if (recorded_ != 0) note();
  }

  /// From now on no launch overlaps: blocks are handed out in the order of streams without a mark.
  /// Before the first one is: whoever has one of them sees it.
  static void serialise_all() { all_.store(true, std::memory_order_relaxed); }
  /// For tests: as at the start of the process.
  static void reset() {
    newest_ = 0;
    all_ = false;
  }

 private:
  static constexpr unsigned kMostAttributes = 32;

  static bool is_of_lane(CUstream stream);
  static bool is_behind_all(CUstream stream);
  void serialise(const cuda::Driver& driver, CUstream stream, bool behind_free);
  void note() const;

  const cuda::LaunchConfiguration* const configuration_;
  bool serialised_ = false;
  bool may_capture_ = false;    ///< the driver does not say
  bool waited_ = false;         ///< the host has waited for the stream
  std::uint64_t recorded_ = 0;  ///< marks recorded before a launch into the lane; 0: none
  cuda::LaunchConfiguration copy_;
  std::array<cuda::LaunchAttribute, kMostAttributes> attributes_;

  static inline std::atomic<bool> all_{false};
  static std::atomic<std::uint64_t> newest_;  ///< the newest mark before a serialised launch there
};

}  // namespace cupool::engine
