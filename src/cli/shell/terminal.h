// SPDX-License-Identifier: Apache-2.0
// Output for terminals only: progress, and the next useful command. Pipes, files and logs get none
// of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace cupool::cli {

/// Whether the descriptor is a terminal.
bool is_terminal(int descriptor);

/// Whether it is a terminal that can erase what it shows.
bool can_redraw(int descriptor);

/// The longest prefix of `text` within `columns` that ends between characters.
std::string cut_text(const std::string& text, std::size_t columns);

/// A line of progress on standard error that overwrites itself and disappears at the end. Does
/// nothing if standard error is not a terminal. Not thread-safe.
class Progress {
 public:
  Progress();
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Whether there is a terminal that shows it.
  bool is_shown() const { return enabled_; }
  /// Shows `text`, truncated to the width of the terminal.
  void show(const std::string& text);
  /// The same for one of many short steps: "reading report 12 of 1,000". Nothing for work that is
  /// done in a moment, and then some ten times a second.
  void show_step(const std::string& text, std::size_t step, std::size_t steps);
  /// Removes the line before other output.
  void clear();

 private:
  bool enabled_;
  std::uint64_t shown_ns_;
  bool shown_ = false;
};

/// Prints "cupool: text" on standard error if it is a terminal.
void hint(const std::string& text);

}  // namespace cupool::cli
