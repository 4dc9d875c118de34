// SPDX-License-Identifier: Apache-2.0
// The number of an epoch, as a type of its own: not to be confused with a count or bytes.
#pragma once

#include <cstdint>

namespace cupool::engine {

/// Number of an epoch of one context; later epochs have greater numbers.
enum class EpochNumber : std::uint64_t {};

/// Before the first epoch: always complete.
constexpr EpochNumber kNoEpoch{0};
/// After the last epoch: never complete.
constexpr EpochNumber kNeverComplete{~std::uint64_t{0}};

constexpr std::uint64_t value_of(EpochNumber number) {
  return static_cast<std::uint64_t>(number);
}
constexpr EpochNumber next(EpochNumber number) {
  return EpochNumber{value_of(number) + 1};
}
constexpr EpochNumber previous(EpochNumber number) {
  return EpochNumber{value_of(number) - 1};
}

}  // namespace cupool::engine
