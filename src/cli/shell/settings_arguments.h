// SPDX-License-Identifier: Apache-2.0
// The library's options as command-line options of every sub-command that starts a program:
// `--free-mode sync`, `--set CUPOOL_IPC=0`, `--profile mpi`.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/shell/child.h"

namespace cupool::cli {

/// The settings that a sub-command decides which reads the reports of the runs that it makes.
std::vector<std::string> report_settings();

/// Why `variable` cannot be given to the sub-command `command`.
std::string decided_text(const std::string& command, const std::string& variable);

/// The given settings: named options by variable, then --set in order.
class SettingsArguments {
 public:
  /// `decided`: variables that the sub-command does not take.
  explicit SettingsArguments(std::vector<std::string> decided = {});

  /// Adds the options to a sub-command, and --help-all, which lists them. The object must live as
  /// long as the App.
  void add_to(CLI::App& command);

  /// The given variables and values, checked by the library's own parser. Throws UsageError for an
  /// unknown name, a bad value, an option given twice, and values that have no effect together with
  /// the others and the environment's.
  std::vector<std::pair<std::string, std::string>> variables() const;

 private:
  struct Named {
    const CLI::Option* option = nullptr;
    std::string value;
  };
  bool is_decided(const std::string& variable) const;
  std::string forgotten_value(const std::vector<std::pair<std::string, std::string>>& variables,
                              const std::string& warning) const;
  void check_together(const std::vector<std::pair<std::string, std::string>>& variables) const;

  std::string command_;
  std::vector<std::string> decided_;
  std::map<std::string, Named> named_;  // by variable; stable addresses for CLI11
  std::vector<std::string> set_;        // NAME=VALUE
};

/// This process's environment with the library in LD_PRELOAD and `variables` set. Throws UsageError
/// as find_library and preload_value do.
Environment preloaded_environment(
    const std::vector<std::pair<std::string, std::string>>& variables);

}  // namespace cupool::cli
