// What is said to a person at a terminal and to nobody else: progress, and the next useful command.
// A pipe, a file or a log gets none of it.
#pragma once

#include <cstdint>
#include <string>

namespace cupool::cli {

/// Whether a person reads this descriptor.
bool is_terminal(int descriptor);

/// One line of progress on standard error that overwrites itself, and is gone at the end. Does
/// nothing where standard error is no terminal. Not thread-safe.
class Progress {
 public:
  Progress();
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Shows `text`, cut to the width of the terminal.
  void show(const std::string& text);
  /// Removes the line, for output that follows.
  void clear();

 private:
  bool enabled_;
  bool shown_ = false;
};

/// Prints "cupool: text" on standard error if that is a terminal.
void hint(const std::string& text);

}  // namespace cupool::cli
