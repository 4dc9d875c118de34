// SPDX-License-Identifier: Apache-2.0
// Text functions without locale or state.
#include "util/text.h"

#include <time.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>

namespace cupool::util {

namespace {

std::string formatted(const char* format, ...) __attribute__((format(printf, 1, 2)));
std::string formatted(const char* format, ...) {
  char text[64];
  std::va_list arguments;
  va_start(arguments, format);
  // NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): clang 14 does not see va_start above.
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return text;
}

struct Unit {
  const char* name;
  double size;
};

// Two decimals below 10, one below 100, none above. A value that rounds up to the next unit ("1024
// KiB") is shown in that unit.
template <std::size_t N>
std::string in_units(double value, const Unit (&units)[N], double step) {
  std::size_t i = 0;
  while (i + 1 < N && value / units[i].size >= step - 0.5) ++i;
  const double scaled = value / units[i].size;
  // At these bounds rounding adds a digit.
  const int decimals = scaled < 9.995 ? 2 : scaled < 99.95 ? 1 : 0;
  return formatted("%.*f %s", decimals, scaled, units[i].name);
}

}  // namespace

std::string format_bytes(std::uint64_t bytes) {
  if (bytes < 1024) return formatted("%u B", static_cast<unsigned>(bytes));
  static constexpr Unit units[] = {
      {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}, {"PiB", 0x1p50}};
  return in_units(static_cast<double>(bytes), units, 1024);
}

std::string format_duration_ns(std::uint64_t duration_ns) {
  if (duration_ns < 1000) return formatted("%u ns", static_cast<unsigned>(duration_ns));
  static constexpr Unit units[] = {{"us", 1e3}, {"ms", 1e6}, {"s", 1e9}};
  return in_units(static_cast<double>(duration_ns), units, 1000);
}

std::string format_count(std::uint64_t count) {
  std::string digits = std::to_string(count);
  for (std::size_t i = digits.size(); i > 3;) {
    i -= 3;
    digits.insert(i, 1, ',');
  }
  return digits;
}

std::string format_percent(std::uint64_t part, std::uint64_t whole) {
  if (whole == 0) return "-";
  const double percent = 100.0 * static_cast<double>(part) / static_cast<double>(whole);
  if (part != 0 && percent < 0.05) return "<0.1 %";
  if (part < whole && percent >= 99.95) return ">99.9 %";
  return formatted("%.1f %%", percent);
}

std::string format_wall_time(std::uint64_t wall_ns) {
  const time_t seconds = static_cast<time_t>(wall_ns / 1'000'000'000u);
  struct tm parts {};
  ::localtime_r(&seconds, &parts);
  char text[64];
  return std::string(text, ::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts));
}

std::string_view trim(std::string_view text) {
  constexpr std::string_view blanks = " \t\r\n\v\f";
  const std::size_t first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

namespace {

// The length of a UTF-8 sequence that begins with `first`; 0: invalid.
std::size_t sequence_length(unsigned char first) {
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first <= 0xdf) return 2;
  if (first >= 0xe0 && first <= 0xef) return 3;
  return first >= 0xf0 && first <= 0xf4 ? 4 : 0;
}

// The length of the UTF-8 character at the beginning of `text`, which is not empty; 0: invalid.
// Overlong forms, surrogates and values beyond U+10FFFF are invalid.
std::size_t character_length(std::string_view text) {
  const auto byte = [text](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const std::size_t length = sequence_length(byte(0));
  if (length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  if (length < 2) return length;
  const bool excluded = (byte(0) == 0xe0 && byte(1) < 0xa0) ||
                        (byte(0) == 0xed && byte(1) > 0x9f) ||
                        (byte(0) == 0xf0 && byte(1) < 0x90) || (byte(0) == 0xf4 && byte(1) > 0x8f);
  return excluded ? 0 : length;
}

bool is_control(std::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  if (character.size() == 1) return first < ' ' || first == 0x7f;
  return first == 0xc2 && static_cast<unsigned char>(character[1]) < 0xa0;
}

}  // namespace

std::string printable(std::string_view text, bool keep_line_ends) {
  std::string shown;
  shown.reserve(text.size());
  while (!text.empty()) {
    const std::size_t length = character_length(text);
    const std::string_view character = text.substr(0, std::max<std::size_t>(length, 1));
    const bool line_end = keep_line_ends && character == "\n";
    if (length == 0 || (is_control(character) && !line_end)) {
      shown += '?';
    } else {
      shown += character;
    }
    text.remove_prefix(character.size());
  }
  return shown;
}

std::string to_lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t end = text.find(separator);
    parts.push_back(trim(text.substr(0, end)));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

bool parse_uint64(std::string_view text, std::uint64_t* out) {
  if (text.empty()) return false;
  std::uint64_t value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return false;
    if (__builtin_mul_overflow(value, std::uint64_t{10}, &value)) return false;
    if (__builtin_add_overflow(value, static_cast<std::uint64_t>(c - '0'), &value)) return false;
  }
  *out = value;
  return true;
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  // Three rows of the table are enough: a swap looks two rows back.
  std::vector<std::size_t> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) above[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replace = above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, replace});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    std::swap(before, above);
    std::swap(above, row);
  }
  return above[b.size()];
}

std::string_view closest(std::string_view word, const std::vector<std::string_view>& candidates) {
  std::string_view best;
  std::size_t best_distance = 0;
  for (const std::string_view candidate : candidates) {
    const std::size_t distance = edit_distance(word, candidate);
    if (distance > std::max(word.size(), candidate.size()) / 3) continue;
    if (best.empty() || distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace cupool::util
