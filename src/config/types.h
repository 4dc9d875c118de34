// SPDX-License-Identifier: Apache-2.0
// The types of options, and the enumerations of options.def. Types carry the meaning (a size may be
// a share of a device's memory), so that the users of a setting never parse text.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

namespace cupool::config {

// The enumerations: Mode, FreeMode, Backend, Pool, StatsFormat, LogLevel.
#define CUPOOL_ENUMERATION_BEGIN(type) enum class type : int {
#define CUPOOL_ENUMERATION_VALUE(enumerator, text) enumerator,
#define CUPOOL_ENUMERATION_END(type) \
  }                                  \
  ;
#include "config/options.def"

/// The text of an enumerator in an option.
template <typename Enum>
struct EnumName {
  const char* text;
  Enum value;
};

/// EnumNames<E>::values lists every enumerator of E with its text, in the order of options.def.
template <typename Enum>
struct EnumNames;
#define CUPOOL_ENUMERATION_BEGIN(type) \
  template <>                          \
  struct EnumNames<type> {             \
    using Enum = type;                 \
    static constexpr EnumName<type> values[] = {
#define CUPOOL_ENUMERATION_VALUE(enumerator, text) {text, Enum::enumerator},
#define CUPOOL_ENUMERATION_END(type) \
  }                                  \
  ;                                  \
  }                                  \
  ;
#include "config/options.def"

/// The text of an enumerator, as the user writes it; "?" for a value outside the enumeration.
template <typename Enum>
constexpr const char* text_of(Enum value) noexcept {
  for (const auto& name : EnumNames<Enum>::values) {
    if (name.value == value) return name.text;
  }
  return "?";
}

/// A number of bytes, or a share of a device's memory, to be converted when the device is known.
struct SizeOption {
  std::uint64_t value = 0;  ///< bytes; if percent, a share from 0 to 100
  bool percent = false;

  /// Bytes, given the total memory of the device in bytes. Cannot overflow. Thread-safe.
  constexpr std::uint64_t resolve(std::uint64_t total_bytes) const noexcept {
    if (!percent) return value;
    return total_bytes / 100 * value + total_bytes % 100 * value / 100;
  }
};

/// A limit that is set, or that cupool finds (`auto`) between a share of the program's usage and
/// `most`.
struct LimitOption {
  /// What `auto` may grow to.
  static constexpr SizeOption kMostOfAuto{2, true};

  SizeOption most = kMostOfAuto;
  bool grows = true;

  /// The limit that is set, or the highest one of `auto`. As SizeOption.
  constexpr std::uint64_t resolve(std::uint64_t total_bytes) const noexcept {
    return most.resolve(total_bytes);
  }
};

/// Bytes to reserve, and whether the first allocation does not wait for them.
struct ReserveOption {
  SizeOption size;
  bool background = false;

  /// As SizeOption.
  constexpr std::uint64_t resolve(std::uint64_t total_bytes) const noexcept {
    return size.resolve(total_bytes);
  }
};

/// The formats of the report; none of them is `off`.
struct StatsFormats {
  std::uint32_t bits = 0;

  constexpr bool contains(StatsFormat format) const noexcept {
    return ((bits >> static_cast<int>(format)) & 1u) != 0;
  }
  constexpr void insert(StatsFormat format) noexcept { bits |= 1u << static_cast<int>(format); }
  constexpr bool off() const noexcept { return bits == 0; }
};

/// A share of calls: all (1), one in N, none (0).
struct Sampling {
  std::uint64_t one_in = 0;
};

/// Bytes between samples on average; 0: none. `is_paced`: more where samples would cost a thread
/// too much of its time.
struct SiteSampling {
  static constexpr std::uint64_t kUsual = 512 << 10;
  std::uint64_t interval_bytes = 0;
  bool is_paced = false;
};

/// A signal by its number; 0 is none.
struct SignalNumber {
  int value = 0;
};

using Count = std::uint64_t;
using Milliseconds = std::chrono::milliseconds;
using Path = std::string;

/// The lowest and highest Count or Milliseconds that an option accepts, both included.
struct Range {
  std::uint64_t lowest = 0;
  std::uint64_t highest = INT64_MAX;
};
inline constexpr Range kAny{};

}  // namespace cupool::config
