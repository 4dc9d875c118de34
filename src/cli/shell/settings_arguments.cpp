// SPDX-License-Identifier: Apache-2.0
// Bad settings end the command before the program starts: a long job with half of its settings
// would be worse.
#include "cli/shell/settings_arguments.h"

#include <algorithm>
#include <utility>

#include "cli/shell/exit_code.h"
#include "cli/shell/library.h"
#include "cli/shell/options_text.h"
#include "cli/shell/program_word.h"
#include "cli/shell/shell_words.h"
#include "config/settings.h"
#include "util/text.h"

namespace cupool::cli {

namespace {

constexpr const char* kProfile = "CUPOOL_PROFILE";

std::pair<std::string, std::string> split_setting(const std::string& text) {
  const std::size_t equals = text.find('=');
  const std::string name = text.substr(0, equals);
  if (equals == std::string::npos || name.compare(0, 7, "CUPOOL_") != 0) {
    const config::Row* const row = find_row(name);
    const std::string error = "--set takes CUPOOL_NAME=VALUE, not " + text;
    if (row == nullptr) throw UsageError(error + nearest_option(name, true));
    if (equals == std::string::npos) throw UsageError(error + ": a value is missing");
    throw UsageError(error + ". Did you mean " + row->name + text.substr(equals) + "?");
  }
  return {name, text.substr(equals + 1)};
}

// The parser's warning without the library's remark that it goes on without the setting.
std::string reason_of(const std::string& warning) {
  const std::size_t remark = std::min(warning.rfind("; keeping "), warning.rfind("; ignored"));
  return warning.substr(0, remark);
}

std::vector<std::string> warnings_of(const Environment& environment) {
  std::vector<std::string> warnings;
  config::parse(environment.pointers().data(), &warnings, nullptr);
  for (std::string& warning : warnings) warning = reason_of(warning);
  return warnings;
}

// Variables of the tests and of the simulated device are no options, and taken.
void check_name(const std::string& name, const std::string& value) {
  if (find_row(name) != nullptr) return;
  const std::string entry = name + "=" + value;
  const char* const environment[] = {entry.c_str(), nullptr};
  std::vector<std::string> warnings;
  config::parse(environment, &warnings, nullptr);
  if (warnings.empty()) return;
  throw UsageError(name + " is not an option of cupool" + nearest_option(name, true));
}

}  // namespace

std::vector<std::string> report_settings() {
  return {"CUPOOL_ENABLE",     "CUPOOL_MODE",        "CUPOOL_STATS",
          "CUPOOL_STATS_FILE", "CUPOOL_STATS_RANKS", "CUPOOL_STATS_SIGNAL"};
}

std::string decided_text(const std::string& command, const std::string& variable) {
  return "cupool " + command + " sets " + variable + " itself, or has no use for it: leave it out";
}

SettingsArguments::SettingsArguments(std::vector<std::string> decided)
    : decided_(std::move(decided)) {}

bool SettingsArguments::is_decided(const std::string& variable) const {
  return std::find(decided_.begin(), decided_.end(), variable) != decided_.end();
}

void SettingsArguments::add_to(CLI::App& command) {
  command_ = command.get_name();
  command.set_help_all_flag("--help-all", "Print this help and all settings");
  command.add_option("--set", set_, "Set any option by its variable; may be repeated")
      ->type_name("CUPOOL_X=VALUE")
      ->allow_extra_args(false);
  for (const config::Row& row : config::rows()) {
    if (is_decided(row.name)) continue;
    const bool profile = std::string(row.name) == kProfile;
    Named& named = named_[row.name];
    named.option =
        command
            .add_option(
                flag_of(row), named.value,
                profile ? "Name of a profile that comes with cupool, or a file of KEY=VALUE lines"
                        : row.documentation)
            ->type_name(profile ? "NAME" : "VALUE")
            ->group(std::string("Settings: ") + row.section);
  }
}

std::vector<std::pair<std::string, std::string>> SettingsArguments::variables() const {
  std::vector<std::pair<std::string, std::string>> variables;
  const auto take = [&variables, this](const std::string& name, std::string value) {
    if (is_decided(name)) throw UsageError(decided_text(command_, name));
    for (const auto& earlier : variables) {
      if (earlier.first == name) throw UsageError(name + " is given twice");
    }
    if (name == kProfile) value = find_profile(value);
    check_name(name, value);
    variables.emplace_back(name, value);
  };
  for (const auto& [name, named] : named_) {
    if (named.option->count() > 0) take(name, named.value);
  }
  for (const std::string& text : set_) {
    const auto [name, value] = split_setting(text);
    take(name, value);
  }
  check_together(variables);
  return variables;
}

// Where the program stands in the place of a value: how to give one; else "".
std::string SettingsArguments::forgotten_value(
    const std::vector<std::pair<std::string, std::string>>& variables,
    const std::string& warning) const {
  for (const auto& [name, value] : variables) {
    const config::Row* const row = find_row(name);
    if (row == nullptr || !util::starts_with(warning, name + "=")) continue;
    if (!is_program_file(value)) continue;
    const bool is_switch = name == "CUPOOL_LEAKS" || name == "CUPOOL_SITES";
    return ". For the program: cupool " + command_ + " " + flag_of(*row) +
           (is_switch ? " 1 " : " VALUE ") + shell_words({value});
  }
  return "";
}

// With the environment, which may hold what they need. What is wrong without them is not theirs.
void SettingsArguments::check_together(
    const std::vector<std::pair<std::string, std::string>>& variables) const {
  Environment environment = Environment::inherited();
  for (const std::string& name : decided_) environment.unset(name);
  if (is_decided("CUPOOL_STATS")) environment.set("CUPOOL_STATS", "json");
  const std::vector<std::string> before = warnings_of(environment);
  for (const auto& [name, value] : variables) environment.set(name, value);
  for (const std::string& warning : warnings_of(environment)) {
    if (std::find(before.begin(), before.end(), warning) != before.end()) continue;
    throw UsageError(warning + forgotten_value(variables, warning));
  }
}

Environment preloaded_environment(
    const std::vector<std::pair<std::string, std::string>>& variables) {
  Environment environment = Environment::inherited();
  const char* const present = environment.get("LD_PRELOAD");
  environment.set("LD_PRELOAD", preload_value(find_library(), present == nullptr ? "" : present));
  environment.unset("CUPOOL_LIBRARY");  // for the command only
  environment.unset("CUPOOL_TRIAL");    // of a command around this one
  for (const auto& [name, value] : variables) environment.set(name, value);
  return environment;
}

}  // namespace cupool::cli
