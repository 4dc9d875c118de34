// Options of the library as options of the command: `--free-mode sync`, `--set CUPOOL_IPC=0`,
// `--profile mpi`. For every sub-command that starts a program.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/child.h"

namespace cupool::cli {

/// What was given, in the order of options.def and then of --set.
class SettingsArguments {
 public:
  /// Adds the options to a sub-command. The object must live as long as the App.
  void add_to(CLI::App& command);

  /// The variables that were asked for, checked by the library's own parser. Throws UsageError for
  /// a name that it does not know, a value that it does not take, and an option given twice.
  std::vector<std::pair<std::string, std::string>> variables() const;

 private:
  struct Named {
    const CLI::Option* option = nullptr;
    std::string value;
  };
  std::map<std::string, Named> named_;  // by variable; stable addresses for CLI11
  std::vector<std::string> set_;        // NAME=VALUE
};

/// An environment under which a program runs with cupool: the library in LD_PRELOAD, `variables`
/// set. Throws UsageError.
Environment preloaded_environment(
    const std::vector<std::pair<std::string, std::string>>& variables);

}  // namespace cupool::cli
