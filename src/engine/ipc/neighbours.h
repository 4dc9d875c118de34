// SPDX-License-Identifier: Apache-2.0
// How a process that is out of memory asks its neighbours to give idle memory back. The answers
// come from process/neighbour_channel. Read with docs/design.md, section Neighbours.
#pragma once

#include <cstddef>
#include <cstdint>

#include "channel/messages.h"
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

  /// A call has waited for `waited_ns` in vain. For as long the next ones are refused at once.
  void give_up(std::uint64_t waited_ns);

 private:
  util::Ranked<util::LockRank::neighbours> mutex_;  // held for a request
  std::uint64_t given_ns_ = 0;                      ///< start of the last request that brought some
  std::uint64_t quiet_until_ns_ = 0;                ///< after a request that brought nothing
  Answer quiet_answer_ = Answer::nothing;           ///< until then
  channel::DeviceId quiet_device_{};
};

}  // namespace cupool::engine::ipc
