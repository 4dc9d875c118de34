// SPDX-License-Identifier: Apache-2.0
// Output for terminals only: progress, and the next useful command. Pipes, files and logs get none
// of it.
#pragma once

#include <cstdint>
#include <string>

namespace cupool::cli {

/// Whether the descriptor is a terminal.
bool is_terminal(int descriptor);

/// A line of progress on standard error that overwrites itself and disappears at the end. Does
/// nothing if standard error is not a terminal. Not thread-safe.
class Progress {
 public:
  Progress();
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Shows `text`, truncated to the width of the terminal.
  void show(const std::string& text);
  /// Removes the line before other output.
  void clear();

 private:
  bool enabled_;
  bool shown_ = false;
};

/// Prints "cupool: text" on standard error if it is a terminal.
void hint(const std::string& text);

}  // namespace cupool::cli
