// SPDX-License-Identifier: Apache-2.0
// Strict parsing of values. Sizes are exact: fractions (1.5G) use integer arithmetic, and values
// beyond 64 bits are refused, not wrapped.
#include "config/value.h"

#include <signal.h>

#include <algorithm>

namespace cupool::config {

namespace {

// Signals that a program or its operator sends. Without those of faults, which recur after the
// handler returns, and those of job control.
struct SignalName {
  const char* name;
  int number;
};
constexpr SignalName kSignals[] = {
    {"hup", SIGHUP},     {"int", SIGINT},   {"quit", SIGQUIT},     {"usr1", SIGUSR1},
    {"usr2", SIGUSR2},   {"alrm", SIGALRM}, {"term", SIGTERM},     {"urg", SIGURG},
    {"winch", SIGWINCH}, {"io", SIGIO},     {"vtalrm", SIGVTALRM}, {"prof", SIGPROF},
    {"pwr", SIGPWR},
};

bool within(const Range& range, std::uint64_t value) {
  return value >= range.lowest && value <= range.highest;
}

// The power of 1024 of "", "B", "K", "KB", "KiB", ... "T"; -1 for anything else.
int unit_power(std::string_view unit) {
  const std::string lower = util::to_lower(unit);
  if (lower.empty() || lower == "b") return 0;
  const std::size_t power = std::string_view("kmgt").find(lower[0]);
  if (power == std::string_view::npos) return -1;
  const std::string_view rest = std::string_view(lower).substr(1);
  return rest.empty() || rest == "b" || rest == "ib" ? static_cast<int>(power) + 1 : -1;
}

// `whole`.`fraction` times 1024^power, rounded down; false beyond 63 bits, so that byte counts can
// be subtracted as signed numbers everywhere.
bool scale(std::uint64_t whole, std::string_view fraction, int power, std::uint64_t* out) {
  const std::uint64_t unit = std::uint64_t{1} << (10 * power);
  std::uint64_t value = 0;
  if (__builtin_mul_overflow(whole, unit, &value)) return false;
  std::uint64_t denominator = 1;
  std::uint64_t numerator = 0;
  for (const char c : fraction) {
    numerator = numerator * 10 + static_cast<std::uint64_t>(c - '0');
    denominator *= 10;
  }
  const auto part =
      static_cast<std::uint64_t>(static_cast<unsigned __int128>(unit) * numerator / denominator);
  if (__builtin_add_overflow(value, part, &value) || value > INT64_MAX) return false;
  *out = value;
  return true;
}

constexpr std::size_t kMaxFractionDigits = 9;

}  // namespace

bool parse_value(std::string_view text, const Range&, bool* out) {
  const std::string lower = util::to_lower(text);
  for (const char* yes : {"1", "on", "true", "yes"}) {
    if (lower == yes) return *out = true, true;
  }
  for (const char* no : {"0", "off", "false", "no"}) {
    if (lower == no) return *out = false, true;
  }
  return false;
}

bool parse_value(std::string_view text, const Range&, SizeOption* out) {
  const std::size_t number_end = text.find_first_not_of("0123456789.");
  const std::string_view number = text.substr(0, number_end);
  const std::string_view unit =
      number_end == std::string_view::npos ? "" : util::trim(text.substr(number_end));
  const std::size_t point = number.find('.');
  const std::string_view fraction = point == std::string_view::npos ? "" : number.substr(point + 1);
  std::uint64_t whole = 0;
  if (!util::parse_uint64(number.substr(0, point), &whole)) return false;
  if (point != std::string_view::npos) {
    std::uint64_t digits = 0;
    if (fraction.size() > kMaxFractionDigits || !util::parse_uint64(fraction, &digits)) {
      return false;
    }
  }
  if (unit == "%") {
    if (whole > 100 || point != std::string_view::npos) return false;
    *out = SizeOption{whole, true};
    return true;
  }
  const int power = unit_power(unit);
  if (power < 0 || (power == 0 && point != std::string_view::npos)) return false;
  std::uint64_t bytes = 0;
  if (!scale(whole, fraction, power, &bytes)) return false;
  *out = SizeOption{bytes, false};
  return true;
}

bool parse_value(std::string_view text, const Range& range, LimitOption* out) {
  SizeOption size;
  if (util::to_lower(text) == "auto") {
    *out = LimitOption{};
    return true;
  }
  if (!parse_value(text, range, &size)) return false;
  *out = LimitOption{size, false};
  return true;
}

bool parse_value(std::string_view text, const Range& range, ReserveOption* out) {
  const std::size_t comma = text.find(',');
  const bool background = comma != std::string_view::npos;
  if (background && util::to_lower(util::trim(text.substr(comma + 1))) != "background") {
    return false;
  }
  SizeOption size;
  if (!parse_value(util::trim(text.substr(0, comma)), range, &size)) return false;
  *out = ReserveOption{size, background};
  return true;
}

bool parse_value(std::string_view text, const Range& range, Count* out) {
  std::uint64_t value = 0;
  if (!util::parse_uint64(text, &value) || !within(range, value)) return false;
  *out = value;
  return true;
}

bool parse_value(std::string_view text, const Range& range, Milliseconds* out) {
  const std::size_t number_end = std::min(text.find_first_not_of("0123456789"), text.size());
  const std::string unit = util::to_lower(util::trim(text.substr(number_end)));
  std::uint64_t factor = 1;
  if (unit == "s") {
    factor = 1000;
  } else if (unit == "min") {
    factor = 60'000;
  } else if (!unit.empty() && unit != "ms") {
    return false;
  }
  std::uint64_t value = 0;
  if (!util::parse_uint64(text.substr(0, number_end), &value)) return false;
  if (__builtin_mul_overflow(value, factor, &value) || value > INT64_MAX) return false;
  if (!within(range, value)) return false;
  *out = Milliseconds(static_cast<std::int64_t>(value));
  return true;
}

bool parse_value(std::string_view text, const Range& range, StatsFormats* out) {
  if (util::to_lower(text) == "off") return *out = StatsFormats{}, true;
  StatsFormats formats;
  for (const std::string_view part : util::split(text, ',')) {
    StatsFormat format{};
    if (!parse_value(part, range, &format)) return false;
    formats.insert(format);
  }
  if (formats.contains(StatsFormat::full)) formats.insert(StatsFormat::text);
  *out = formats;
  return true;
}

bool parse_value(std::string_view text, const Range& range, Sampling* out) {
  bool all = false;
  if (parse_value(text, range, &all)) return *out = Sampling{all ? 1u : 0u}, true;
  std::uint64_t one_in = 0;
  if (text.substr(0, 2) != "1/" || !util::parse_uint64(text.substr(2), &one_in)) return false;
  if (one_in == 0 || one_in > 1'000'000) return false;
  return *out = Sampling{one_in}, true;
}

bool parse_value(std::string_view text, const Range& range, SiteSampling* out) {
  bool usual = false;
  if (parse_value(text, range, &usual)) {
    return *out = SiteSampling{usual ? SiteSampling::kUsual : 0, usual}, true;
  }
  SizeOption size;
  constexpr std::uint64_t kMost = std::uint64_t{1} << 40;
  if (!parse_value(text, range, &size) || size.percent || size.value < 2 || size.value > kMost) {
    return false;
  }
  return *out = SiteSampling{size.value, false}, true;
}

bool parse_value(std::string_view text, const Range&, SignalNumber* out) {
  std::string name = util::to_lower(text);
  if (name == "none") return *out = SignalNumber{}, true;
  if (name.compare(0, 3, "sig") == 0) name.erase(0, 3);
  std::uint64_t number = 0;
  const bool numeric = util::parse_uint64(text, &number);
  for (const SignalName& signal : kSignals) {
    if (numeric ? number == static_cast<std::uint64_t>(signal.number) : name == signal.name) {
      return *out = SignalNumber{signal.number}, true;
    }
  }
  if (!numeric || number < static_cast<std::uint64_t>(SIGRTMIN) ||
      number > static_cast<std::uint64_t>(SIGRTMAX)) {
    return false;
  }
  return *out = SignalNumber{static_cast<int>(number)}, true;
}

bool parse_value(std::string_view text, const Range&, Path* out) {
  *out = std::string(text);
  return true;
}

std::string TypeText<SizeOption>::accepted(const Range&) {
  return "a size (K, M, G or T) or 0% to 100%";
}

std::string TypeText<LimitOption>::accepted(const Range& range) {
  return "auto, " + TypeText<SizeOption>::accepted(range);
}
std::string TypeText<ReserveOption>::accepted(const Range& range) {
  return TypeText<SizeOption>::accepted(range) + ", also with \",background\"";
}
std::string TypeText<Count>::accepted(const Range& range) {
  if (range.highest >= kAny.highest) return "a number from " + std::to_string(range.lowest);
  return std::to_string(range.lowest) + " to " + std::to_string(range.highest);
}

std::string TypeText<Milliseconds>::accepted(const Range& range) {
  return TypeText<Count>::accepted(range) + (range.highest >= kAny.highest ? " (ms)" : " ms");
}

std::string TypeText<StatsFormats>::accepted(const Range&) {
  std::string text;
  for (const auto& format : EnumNames<StatsFormat>::values) text += std::string(format.text) + ", ";
  return text.substr(0, text.size() - 2) + " (separated by commas) or off";
}

}  // namespace cupool::config
