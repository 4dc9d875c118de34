// SPDX-License-Identifier: Apache-2.0
// A text that is drawn again in place at a terminal, until q or Ctrl-C.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

namespace cupool::cli {

/// Reads keys without a line end, and handles signals that would end the command, until it is
/// destroyed: then the terminal is as before, with the last text on it. One at a time.
class Screen {
 public:
  Screen();
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  /// Columns of the terminal.
  static std::size_t width();
  /// Draws the text from the top, cut to the terminal.
  void show(const std::string& text);
  /// Waits for the time, or for less if the terminal changes its size. False: the user quits.
  bool wait(std::chrono::milliseconds time);

 private:
  bool cleared_ = false;
};

}  // namespace cupool::cli
