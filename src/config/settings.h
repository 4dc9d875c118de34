// The settings in force: environment over profile over default, every field typed.
// Whoever decides something reads a field here; nobody else reads an environment variable.
#pragma once

#include <string>
#include <vector>

#include "config/types.h"

namespace cupool::config {

/// One field for each option of options.def; what each means stands there.
struct Settings {
#define CUPOOL_OPTION(name, field, type, default_text, range, section, documentation) type field{};
#include "config/options.def"
};

/// Where the value of an option came from.
enum class Origin { builtin, environment, profile };

/// "default", "environment" or "profile".
const char* text_of(Origin origin) noexcept;

/// An option's value in force, for reports.
struct EffectiveValue {
  const char* name = "";  ///< CUPOOL_...; static storage
  std::string value;      ///< as the user wrote it, or the default's text
  Origin origin = Origin::builtin;
  bool is_default = true;  ///< the text equals the default's, whoever wrote it
};

/// One option, for documentation and tools. All texts have static storage.
struct Row {
  const char* name;
  const char* type_name;
  const char* default_text;
  const char* section;
  const char* documentation;
  std::string (*accepted)();  ///< the values it takes, in words
};

/// The rows of options.def, in its order. Usable in a range-for. Thread-safe.
struct RowSpan {
  const Row* first;
  const Row* last;
  const Row* begin() const noexcept { return first; }
  const Row* end() const noexcept { return last; }
};
RowSpan rows() noexcept;

/// Parses an environment (null-terminated array of KEY=VALUE; may be null). Pure but for reading
/// the file that CUPOOL_PROFILE names. A bad value gives exactly one warning and the option keeps
/// what it had (the profile's value, or the default); an unknown CUPOOL_* gives one with the
/// nearest name, but CUPOOL_SIM_* and CUPOOL_TEST_* belong to the tests and are passed over. Of
/// equal names the first counts, as for getenv. `warnings` and `effective` may be null. Throws only
/// std::bad_alloc.
Settings parse(const char* const* environment, std::vector<std::string>* warnings,
               std::vector<EffectiveValue>* effective);

/// The settings of this process: parsed on the first call, constant from then on. That call also
/// sets level and destination of cupool::log, and prints nothing. Thread-safe. Never throws: where
/// parsing is impossible (no memory), cupool is disabled.
const Settings& settings() noexcept;

/// The values of this process with their origins, in the order of options.def. Thread-safe.
const std::vector<EffectiveValue>& effective() noexcept;

/// Writes the warnings that parsing gave to cupool::log, on the first call only. Call it when the
/// process turns out to use the GPU: a process without CUDA must not print (contract 13).
/// Thread-safe. Never throws.
void announce_warnings() noexcept;

}  // namespace cupool::config
