// SPDX-License-Identifier: Apache-2.0
// Requests between processes of one user that share a device: what they say, and how a process that
// is out of memory asks the others to give idle memory back. The answers come from
// process/neighbour_channel. Read with docs/design.md, section Neighbours.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "engine/ipc/socket.h"
#include "util/lock_order.h"

namespace cupool::engine::ipc {

/// UUID of a device or MIG instance: the same in every process.
using DeviceId = std::array<unsigned char, 16>;
constexpr DeviceId kNoDevice{};

enum class NeighbourVerb : std::uint32_t { give_back = 1 };

/// Both messages keep their sizes and first two members in all versions.
struct NeighbourRequest {
  std::uint64_t magic = 0x5a1f3ce98b07d642;  // random
  std::uint32_t version = 1;
  NeighbourVerb verb = NeighbourVerb::give_back;
  DeviceId device{};
  std::uint64_t wanted_bytes = 0;  ///< 0: not known
  std::array<unsigned char, 24> reserved{};

  bool valid() const {
    const NeighbourRequest good;
    return magic == good.magic && version == good.version && verb == good.verb;
  }
};
static_assert(sizeof(NeighbourRequest) == 64, "a request has 64 bytes in every version");

struct NeighbourReply {
  std::uint64_t magic = NeighbourRequest{}.magic;
  std::uint32_t version = 1;
  std::uint32_t shares_device = 0;  ///< 1: may have memory of the device to give later
  std::uint64_t given_bytes = 0;
  std::array<unsigned char, 40> reserved{};
};
static_assert(sizeof(NeighbourReply) == 64, "a reply has 64 bytes in every version");

/// A socket that neighbours find; invalid on failure. One per process.
Descriptor listen_for_neighbours();

/// This process's requests to its neighbours. Thread-safe.
class Neighbours {
 public:
  /// Neighbours asked at once. Bounds the descriptors that a request takes.
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
  Answer ask(const DeviceId& device, std::uint64_t wanted_bytes, std::uint64_t limit_ns);

  /// A call has waited for `waited_ns` in vain. For as long the next ones are refused at once.
  void give_up(std::uint64_t waited_ns);

 private:
  util::Ranked<util::LockRank::neighbours> mutex_;  // held for a request
  std::uint64_t given_ns_ = 0;                      ///< start of the last request that brought some
  std::uint64_t quiet_until_ns_ = 0;                ///< after a request that brought nothing
  Answer quiet_answer_ = Answer::nothing;           ///< until then
  DeviceId quiet_device_{};
};

}  // namespace cupool::engine::ipc
