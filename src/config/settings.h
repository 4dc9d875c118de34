// SPDX-License-Identifier: Apache-2.0
// The settings in force: environment before profile before default, every field typed. All
// decisions read a field here; no other code reads an environment variable.
#pragma once

#include <string>
#include <vector>

#include "config/types.h"

namespace cupool::config {

/// One field for each option of options.def, which describes it.
struct Settings {
#define CUPOOL_OPTION(name, field, type, default_text, range, section, documentation) type field{};
#include "config/options.def"
};

/// The origin of an option's value.
enum class Origin { builtin, environment, profile };

/// "default", "environment" or "profile".
const char* text_of(Origin origin) noexcept;

/// An option's value in force, for reports.
struct EffectiveValue {
  const char* name = "";  ///< CUPOOL_...; static storage
  std::string value;      ///< as the user wrote it, or the default's text
  Origin origin = Origin::builtin;
  bool is_default = true;  ///< the text equals the default's, whatever its origin
};

/// One option, for documentation and tools. All texts have static storage.
struct Row {
  const char* name;
  const char* type_name;
  const char* default_text;
  const char* section;
  const char* documentation;
  std::string (*accepted)();  ///< the accepted values, in words
};

/// The rows of options.def, in its order. Usable in a range-for. Thread-safe.
struct RowSpan {
  const Row* first;
  const Row* last;
  const Row* begin() const noexcept { return first; }
  const Row* end() const noexcept { return last; }
};
RowSpan rows() noexcept;

/// Parses an environment (null-terminated array of KEY=VALUE; may be null). Pure, except that it
/// reads the file of CUPOOL_PROFILE. An invalid value gives exactly one warning, and the option
/// keeps the profile's value or the default. An unknown CUPOOL_* gives one warning with the nearest
/// name; CUPOOL_SIM_* and CUPOOL_TEST_* belong to the tests and are ignored. Of equal names the
/// first counts, as for getenv. `warnings` and `effective` may be null. Throws only std::bad_alloc.
Settings parse(const char* const* environment, std::vector<std::string>* warnings,
               std::vector<EffectiveValue>* effective);

/// The settings of a process with more privileges than its user (AT_SECURE): all defaults, and
/// cupool disabled. Throws only std::bad_alloc.
Settings secure_settings(std::vector<EffectiveValue>* effective);

/// The settings of this process: parsed on the first call, constant from then on. That call also
/// sets the level and destination of cupool::log; it prints nothing. Thread-safe. Never throws: if
/// parsing is impossible (no memory), cupool is disabled.
const Settings& settings() noexcept;

/// The values of this process with their origins, ordered as in options.def. Thread-safe.
const std::vector<EffectiveValue>& effective() noexcept;

/// Whether a command of cupool started this process to read its report, and may have gone before it
/// ends (CUPOOL_TRIAL in the environment, which is no option).
bool is_trial() noexcept;

/// Writes the warnings of parsing to cupool::log, on the first call only. To be called once the
/// process uses the GPU: a process without CUDA must not print (contract 13). Thread-safe. Never
/// throws.
void announce_warnings() noexcept;

}  // namespace cupool::config
