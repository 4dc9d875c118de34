// SPDX-License-Identifier: Apache-2.0
// What processes of one user say to each other by their channels. Read with docs/design.md, section
// Neighbours.
#pragma once

#include <array>
#include <cstdint>

namespace cupool::channel {

/// UUID of a device or MIG instance: the same in every process.
using DeviceId = std::array<unsigned char, 16>;
constexpr DeviceId kNoDevice{};

constexpr std::uint64_t kNeighbourMagic = 0x5a1f3ce98b07d642;  // random

/// give_back is answered by a NeighbourReply, figures by a stats::LiveFigures.
enum class NeighbourVerb : std::uint32_t { give_back = 1, figures = 2 };

/// Every message keeps its first two members in all versions, and these two keep their sizes.
struct NeighbourRequest {
  std::uint64_t magic = kNeighbourMagic;
  std::uint32_t version = 1;
  NeighbourVerb verb = NeighbourVerb::give_back;
  DeviceId device{};
  std::uint64_t wanted_bytes = 0;  ///< 0: not known
  std::array<unsigned char, 24> reserved{};

  bool valid() const {
    const NeighbourRequest good;
    return magic == good.magic && version == good.version &&
           (verb == NeighbourVerb::give_back || verb == NeighbourVerb::figures);
  }
};
static_assert(sizeof(NeighbourRequest) == 64, "a request has 64 bytes in every version");

struct NeighbourReply {
  std::uint64_t magic = kNeighbourMagic;
  std::uint32_t version = 1;
  std::uint32_t shares_device = 0;  ///< 1: may have memory of the device to give later
  std::uint64_t given_bytes = 0;
  std::array<unsigned char, 40> reserved{};
};
static_assert(sizeof(NeighbourReply) == 64, "a reply has 64 bytes in every version");

}  // namespace cupool::channel
