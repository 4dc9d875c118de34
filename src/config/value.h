// SPDX-License-Identifier: Apache-2.0
// Conversion of one value's text to its type, and the accepted values in words. Strict: a partly
// understood value is refused, because a job that runs with half of a setting is worse than a
// warning.
#pragma once

#include <iterator>
#include <string>
#include <string_view>

#include "config/types.h"
#include "util/text.h"

namespace cupool::config {

/// Each parses a trimmed text. False, with `out` unchanged, if the text is not a value of the type
/// or is out of range. Pure. Throw only std::bad_alloc. bool: 1, 0, on, off, true, false, yes, no
/// in any case.
bool parse_value(std::string_view text, const Range& range, bool* out);
/// Bytes: 4096, 512K, 1.5G, 2GiB, 2 gb (all binary: K is 1024); or a share: 50%, from 0% to 100%.
bool parse_value(std::string_view text, const Range& range, SizeOption* out);
/// A size as above, or auto.
bool parse_value(std::string_view text, const Range& range, LimitOption* out);
/// A size as above, alone or followed by ",background".
bool parse_value(std::string_view text, const Range& range, ReserveOption* out);
/// Digits only.
bool parse_value(std::string_view text, const Range& range, Count* out);
/// Digits, and a unit (ms, s, min); without one, milliseconds. The range is in milliseconds.
bool parse_value(std::string_view text, const Range& range, Milliseconds* out);
/// Names separated by commas; `off` only by itself.
bool parse_value(std::string_view text, const Range& range, StatsFormats* out);
/// 0 or off, 1 or on, 1/64.
bool parse_value(std::string_view text, const Range& range, Sampling* out);
/// 0 or off, 1 or on, or bytes from 2 to 1T.
bool parse_value(std::string_view text, const Range& range, SiteSampling* out);
/// A name with or without SIG in any case, a number, or `none`. Signals that cannot be caught,
/// signals of faults, and those reserved by nptl are refused.
bool parse_value(std::string_view text, const Range& range, SignalNumber* out);
/// Any text, including the empty one.
bool parse_value(std::string_view text, const Range& range, Path* out);

/// One of the enumeration's names, in any case.
template <typename Enum, typename = decltype(EnumNames<Enum>::values)>
bool parse_value(std::string_view text, const Range&, Enum* out) {
  const std::string lower = util::to_lower(text);
  for (const auto& name : EnumNames<Enum>::values) {
    if (lower == name.text) {
      *out = name.value;
      return true;
    }
  }
  return false;
}

/// "a, b or c" of an enumeration's names.
template <typename Enum>
std::string names_of() {
  std::string text;
  constexpr std::size_t count = std::size(EnumNames<Enum>::values);
  for (std::size_t i = 0; i < count; ++i) {
    if (i > 0) text += i + 1 == count ? " or " : ", ";
    text += EnumNames<Enum>::values[i].text;
  }
  return text;
}

/// The name of a type in the documentation, and its accepted values.
template <typename Type>
struct TypeText {  // the enumerations
  static constexpr const char* name = "name";
  static std::string accepted(const Range&) { return names_of<Type>(); }
};
template <>
struct TypeText<bool> {
  static constexpr const char* name = "boolean";
  static std::string accepted(const Range&) { return "1 or 0"; }
};
template <>
struct TypeText<SizeOption> {
  static constexpr const char* name = "size";
  static std::string accepted(const Range&);
};
template <>
struct TypeText<LimitOption> {
  static constexpr const char* name = "limit";
  static std::string accepted(const Range& range);
};
template <>
struct TypeText<ReserveOption> {
  static constexpr const char* name = "reserve";
  static std::string accepted(const Range& range);
};
template <>
struct TypeText<Count> {
  static constexpr const char* name = "count";
  static std::string accepted(const Range& range);
};
template <>
struct TypeText<Milliseconds> {
  static constexpr const char* name = "milliseconds";
  static std::string accepted(const Range& range);
};
template <>
struct TypeText<StatsFormats> {
  static constexpr const char* name = "list";
  static std::string accepted(const Range&);
};
template <>
struct TypeText<Sampling> {
  static constexpr const char* name = "share";
  static std::string accepted(const Range&) { return "1, 0 or 1/N (such as 1/64)"; }
};
template <>
struct TypeText<SiteSampling> {
  static constexpr const char* name = "interval";
  static std::string accepted(const Range&) { return "1, 0 or a size (such as 4M)"; }
};
template <>
struct TypeText<SignalNumber> {
  static constexpr const char* name = "signal";
  static std::string accepted(const Range&) { return "a signal (USR1, SIGUSR2, 12) or none"; }
};
template <>
struct TypeText<Path> {
  static constexpr const char* name = "path";
  static std::string accepted(const Range&) { return "a file name"; }
};

}  // namespace cupool::config
