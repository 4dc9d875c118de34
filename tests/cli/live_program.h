// SPDX-License-Identifier: Apache-2.0
// A program that runs beside the test, until its standard input is closed.
#pragma once

#include <sys/types.h>

#include <string>

#include "harness.h"

namespace cli {

/// Starts the words, the first one being a probe, and waits for its first line. Ends with it.
class LiveProgram {
 public:
  LiveProgram(const std::string& words, const preload::Environment& environment);
  ~LiveProgram();
  LiveProgram(const LiveProgram&) = delete;
  LiveProgram& operator=(const LiveProgram&) = delete;

  pid_t pid() const { return pid_; }
  /// Its first line; "" if it has ended without one.
  const std::string& first_line() const { return first_line_; }
  /// Writes to its standard input.
  void send(const std::string& text) const;
  /// Closes its standard input and waits for its end.
  void end();

 private:
  pid_t pid_ = -1;
  int input_ = -1;
  std::string first_line_;
};

}  // namespace cli
