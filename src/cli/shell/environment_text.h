// SPDX-License-Identifier: Apache-2.0
// The variables that preload cupool, as a shell, a container or a job takes them (`cupool env`).
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace cupool::cli {

/// What to set.
struct PreloadVariables {
  std::string library;  ///< absolute, made preloadable
  std::string preload;  ///< LD_PRELOAD of this process with the library in it (preload_value)
  std::vector<std::pair<std::string, std::string>> settings;  ///< CUPOOL_* variables
};

/// One form of output.
struct EnvironmentSyntax {
  const char* name;      ///< for `--shell`
  bool other_file_tree;  ///< a container: sees neither this process's variables nor its files
  bool other_machine;    ///< may be read on another machine, which has no links made here
  /// The text. Throws UsageError for a value that the syntax cannot hold.
  std::string (*text)(const PreloadVariables& variables);
};

/// The syntax called `name`. Throws UsageError for an unknown name.
const EnvironmentSyntax& environment_syntax(const std::string& name);

/// All names, in the order of the documentation.
std::vector<std::string> environment_syntax_names();

}  // namespace cupool::cli
