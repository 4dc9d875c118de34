// SPDX-License-Identifier: Apache-2.0
// How a process that is out of memory asks its neighbours to give idle memory back. The answers
// come from process/neighbour_channel. Read with docs/design.md, section Neighbours.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "channel/messages.h"
#include "stats/device_stats.h"
#include "util/lock_order.h"

namespace cupool::engine::ipc {

/// This process's requests to its neighbours. Thread-safe.
class Neighbours {
 public:
  /// Neighbours asked at once, the others in turn. Bounds the descriptors that a request takes.
  static constexpr std::size_t kMostNeighbours = 64;
  /// A neighbour that needs longer is stopped, or busy with its driver.
  static constexpr std::uint64_t kLongestAskNs = 500'000'000;
  /// How long a call asks again before it is refused.
  static constexpr std::uint64_t kLongestWaitNs = 1'000'000'000;
  /// Bounds the cost for a program that runs out of memory again and again.
  static constexpr std::uint64_t kAskAgainNs = 100'000'000;

  enum class Answer {
    gave,     ///< some memory
    later,    ///< nothing now; a neighbour on the device may have some in a moment
    nothing,  ///< there is no such neighbour, or a call has waited in vain a moment ago
  };

  /// Asks all neighbours to give back idle memory of `device`. Returns once they gave
  /// `wanted_bytes` (0: not known) and a little more, have all answered, or `limit_ns` or the limit
  /// of a request has passed. A request of another thread that begins meanwhile counts for this
  /// one, and so does the answer of one that ended less than kAskAgainNs ago. The caller is in no
  /// visit.
  Answer ask(const channel::DeviceId& device, std::uint64_t wanted_bytes, std::uint64_t limit_ns);

  /// A call for memory of `device` has waited for `waited_ns` in vain. For as long the next ones
  /// are refused at once.
  void give_up(const channel::DeviceId& device, std::uint64_t waited_ns);

 private:
  /// What the requests for one device have brought.
  struct Asked {
    channel::DeviceId device = channel::kNoDevice;  ///< until the first request
    std::uint64_t given_ns = 0;                     ///< start of the last one that brought some
    std::uint64_t quiet_until_ns = 0;               ///< after one that brought nothing
    Answer quiet_answer = Answer::nothing;          ///< until then
  };
  Asked& asked_for(const channel::DeviceId& device);

  util::Ranked<util::LockRank::neighbours> mutex_;  // held for a request
  std::array<Asked, stats::kMaxDevices> asked_;
};

}  // namespace cupool::engine::ipc
