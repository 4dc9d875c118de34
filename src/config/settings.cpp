// SPDX-License-Identifier: Apache-2.0
// The parser: one pass over the profile, one over the environment, both driven by options.def.
#include "config/settings.h"

#include <stdlib.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <new>
#include <string_view>
#include <utility>

#include "config/profile.h"
#include "config/value.h"
#include "util/log.h"
#include "util/path_pattern.h"
#include "util/standard_error.h"
#include "util/text.h"

namespace cupool::config {

namespace {

static_assert(static_cast<int>(LogLevel::off) == static_cast<int>(log::Level::off) &&
                  static_cast<int>(LogLevel::trace) == static_cast<int>(log::Level::trace),
              "LogLevel and log::Level are cast into one another");

#define CUPOOL_OPTION(option, field, type, default_text, range, section, documentation) \
  Row{#option, TypeText<type>::name, default_text,                                      \
      section, documentation,        [] { return TypeText<type>::accepted(range); }},
constexpr Row kRows[] = {
#include "config/options.def"
};
constexpr std::size_t kRowCount = sizeof kRows / sizeof kRows[0];

enum class Outcome { taken, unknown, bad };

// Puts `text` into the field of option `name`.
Outcome assign(Settings* settings, std::string_view name, std::string_view text) {
#define CUPOOL_OPTION(option, field, type, default_text, range, section, documentation) \
  if (name == #option) {                                                                \
    return parse_value(text, range, &settings->field) ? Outcome::taken : Outcome::bad;  \
  }
#include "config/options.def"
  return Outcome::unknown;
}

// A former option, now a value of CUPOOL_PREALLOC.
constexpr const char* kFormerBackground = "CUPOOL_PREALLOC_BACKGROUND";

std::size_t row_index(std::string_view name) {
  std::size_t i = 0;
  while (i < kRowCount && name != kRows[i].name) ++i;
  return i;
}

constexpr const char* kTrial = "CUPOOL_TRIAL";

// Variables with cupool's prefix that are not options: those of the simulated device, of the tests,
// the one that the command reads (src/cli/shell/library.h), and the one that it sets.
bool is_meant_for_others(std::string_view name) {
  return util::starts_with(name, "CUPOOL_SIM_") || util::starts_with(name, "CUPOOL_TEST_") ||
         name == "CUPOOL_LIBRARY" || name == kTrial;
}

// Text from the environment, made safe for one line of a warning.
std::string printable(std::string_view text) {
  constexpr std::size_t longest = 100;
  return util::printable(text.substr(0, longest)) + (text.size() > longest ? "..." : "");
}

class Parser {
 public:
  explicit Parser(std::vector<std::string>* warnings) : warnings_(warnings), values_(kRowCount) {
    for (std::size_t i = 0; i < kRowCount; ++i) {
      values_[i] = EffectiveValue{kRows[i].name, kRows[i].default_text, Origin::builtin, true};
      assign(&settings_, kRows[i].name, kRows[i].default_text);
    }
  }

  // One variable. `where` precedes the warnings: "" or "file: ".
  void take(std::string_view name, std::string_view raw, Origin origin, const std::string& where) {
    const std::string_view text = util::trim(raw);
    if (name == kFormerBackground) return take_former_background(text, origin, where);
    switch (assign(&settings_, name, text)) {
      case Outcome::taken: {
        EffectiveValue& value = values_[row_index(name)];
        value.value = std::string(text);
        value.origin = origin;
        value.is_default = text == kRows[row_index(name)].default_text;
        break;
      }
      case Outcome::bad:
        warn_bad(name, text, where);
        break;
      case Outcome::unknown:
        warn_unknown(name, where);
        break;
    }
  }

  Settings finish(std::vector<EffectiveValue>* effective) {
    if (former_background_ && !settings_.prealloc.background) {
      settings_.prealloc.background = true;
      EffectiveValue& value = values_[row_index("CUPOOL_PREALLOC")];
      value.value += ",background";
      value.is_default = false;
    }
    if (effective != nullptr) *effective = std::move(values_);
    return std::move(settings_);
  }

 private:
  void take_former_background(std::string_view text, Origin origin, const std::string& where) {
    const bool known = parse_value(text, kAny, &former_background_);
    warnings_->push_back(where + kFormerBackground +
                         (known ? " has become a value of CUPOOL_PREALLOC"
                                : "=\"" + printable(text) + "\" is not understood") +
                         ": write CUPOOL_PREALLOC=SIZE,background");
    if (known && former_background_) values_[row_index("CUPOOL_PREALLOC")].origin = origin;
  }

  void warn_bad(std::string_view name, std::string_view text, const std::string& where) {
    const std::size_t i = row_index(name);
    warnings_->push_back(where + std::string(name) + "=\"" + printable(text) + "\" " +
                         (text.empty() ? "is empty" : "is not understood") + ": it takes " +
                         kRows[i].accepted() + "; keeping " + values_[i].value);
  }

  void warn_unknown(std::string_view name, const std::string& where) {
    std::vector<std::string_view> names;
    for (const Row& row : kRows) names.emplace_back(row.name);
    const std::string_view near = util::closest(name, names);
    std::string text = where + printable(name) + " is not an option of cupool; ignored";
    if (!near.empty()) text += ". Did you mean " + std::string(near) + "?";
    warnings_->push_back(std::move(text));
  }

  std::vector<std::string>* warnings_;
  std::vector<EffectiveValue> values_;
  Settings settings_;
  bool former_background_ = false;
};

// The CUPOOL_* variables of an environment; of equal names the first, as for getenv.
KeyValues variables_of(const char* const* environment) {
  KeyValues variables;
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    const std::string_view entry = *environment;
    const std::size_t equals = entry.find('=');
    if (!util::starts_with(entry, "CUPOOL_") || equals == std::string_view::npos) continue;
    const std::string_view name = entry.substr(0, equals);
    bool seen = is_meant_for_others(name);
    for (const auto& variable : variables) seen = seen || variable.first == name;
    if (!seen) variables.emplace_back(std::string(name), std::string(entry.substr(equals + 1)));
  }
  return variables;
}

// Settings that are valid each, but have no effect together.
void check_together(const Settings& settings, std::vector<std::string>* warnings) {
  const bool listed =
      settings.stats.contains(StatsFormat::text) || settings.stats.contains(StatsFormat::json);
  if (settings.leaks.one_in != 0 && !listed) {
    warnings->emplace_back(
        "CUPOOL_LEAKS lists nothing: only the text and JSON reports contain the list, and "
        "CUPOOL_STATS selects neither. Set CUPOOL_STATS=text or json");
  }
  if (settings.sites.interval_bytes != 0 && settings.mode == Mode::observe) {
    warnings->emplace_back(
        "CUPOOL_SITES lists nothing: CUPOOL_MODE=observe follows no call sites. Unset one of them");
  } else if (settings.sites.interval_bytes != 0 && !settings.stats.contains(StatsFormat::json)) {
    warnings->emplace_back(
        "CUPOOL_SITES lists nothing: only the JSON report contains the sites. Set "
        "CUPOOL_STATS=json, or text,json");
  }
  const auto check_letters = [warnings](const char* name, const Path& pattern) {
    const std::string unknown = util::unknown_letters(pattern);
    if (unknown.empty()) return;
    warnings->push_back(std::string(name) + "=\"" + printable(pattern) +
                        "\": " + printable(unknown) +
                        " means nothing and stays as it is. Known are " + util::kPatternLetters);
  };
  check_letters("CUPOOL_STATS_FILE", settings.stats_file);
  check_letters("CUPOOL_TRACE", settings.trace);
  check_letters("CUPOOL_LOG_FILE", settings.log_file);
}

void take_profile(Parser* parser, const std::string& path, std::vector<std::string>* warnings) {
  for (const auto& [name, value] : read_profile(path, warnings)) {
    if (name == "CUPOOL_PROFILE") {
      warnings->push_back(path + ": CUPOOL_PROFILE inside a profile is ignored");
    } else if (!is_meant_for_others(name)) {
      parser->take(name, value, Origin::profile, path + ": ");
    }
  }
}

// The parsed settings of this process; created once and never destroyed.
struct Parsed {
  Settings settings;
  std::vector<std::string> warnings;
  std::vector<EffectiveValue> effective;
  std::atomic<bool> announced{false};
  bool trial = false;
};

std::atomic<Parsed*> g_parsed{nullptr};

// Settings for a process without memory even for parsing: cupool is disabled.
Parsed* disabled() noexcept {
  alignas(Parsed) static unsigned char storage[sizeof(Parsed)];
  static Parsed* const made = new (storage) Parsed;
  return made;
}

// The first caller parses. Two threads may both parse; the later result is dropped. No lock: a fork
// could leave it held in the child.
Parsed* parsed() noexcept {
  Parsed* current = g_parsed.load(std::memory_order_acquire);
  if (current != nullptr) return current;
  try {
    auto made = std::make_unique<Parsed>();
    made->settings = ::getauxval(AT_SECURE) != 0
                         ? secure_settings(&made->effective)
                         : parse(environ, &made->warnings, &made->effective);
    made->trial = ::secure_getenv(kTrial) != nullptr;
    Settings& settings = made->settings;
    // The program may change its working directory between two writes.
    for (Path* file : {&settings.stats_file, &settings.trace, &settings.log_file}) {
      *file = util::absolute_pattern(*file);
      util::note_descriptor(util::descriptor_named(*file));
    }
    if (!g_parsed.compare_exchange_strong(current, made.get(), std::memory_order_acq_rel)) {
      return current;
    }
    log::configure(static_cast<log::Level>(settings.log_level), settings.log_file.c_str());
    return made.release();
  } catch (...) {
    return disabled();
  }
}

}  // namespace

const char* text_of(Origin origin) noexcept {
  switch (origin) {
    case Origin::builtin:
      return "default";
    case Origin::environment:
      return "environment";
    case Origin::profile:
      return "profile";
  }
  return "?";
}

RowSpan rows() noexcept {
  return RowSpan{kRows, kRows + kRowCount};
}

Settings parse(const char* const* environment, std::vector<std::string>* warnings,
               std::vector<EffectiveValue>* effective) {
  std::vector<std::string> unwanted;
  if (warnings == nullptr) warnings = &unwanted;
  const KeyValues variables = variables_of(environment);
  Parser parser(warnings);
  for (const auto& [name, value] : variables) {
    const std::string path(util::trim(value));
    if (name == "CUPOOL_PROFILE" && !path.empty()) take_profile(&parser, path, warnings);
  }
  for (const auto& [name, value] : variables) parser.take(name, value, Origin::environment, "");
  Settings settings = parser.finish(effective);
  check_together(settings, warnings);
  return settings;
}

Settings secure_settings(std::vector<EffectiveValue>* effective) {
  Settings settings = parse(nullptr, nullptr, effective);
  settings.enable = false;
  return settings;
}

const Settings& settings() noexcept {
  return parsed()->settings;
}

const std::vector<EffectiveValue>& effective() noexcept {
  return parsed()->effective;
}

bool is_trial() noexcept {
  return parsed()->trial;
}

void announce_warnings() noexcept {
  Parsed* const mine = parsed();
  if (mine->announced.exchange(true, std::memory_order_relaxed)) return;
  for (const std::string& warning : mine->warnings) CUPOOL_LOG(warn, "%s", warning.c_str());
}

}  // namespace cupool::config
