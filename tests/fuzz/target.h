// SPDX-License-Identifier: Apache-2.0
// A fuzz target: a function that takes any bytes and must neither crash nor hang, and requires of
// the result what holds for every input. Run over seeds and their mutations as an ordinary test
// (mutator.cpp), and by libFuzzer (libfuzzer.cpp).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fuzz {

struct Target {
  const char* name;
  const char* inputs;  ///< in words
  void (*run)(const std::string& input);
  std::vector<std::string> (*seeds)();  ///< valid inputs, to begin with
};

/// The targets of targets.def.
const std::vector<Target>& targets();
/// Null: no such target.
const Target* target_of(const std::string& name);

#define FUZZ_TARGET(name, inputs)            \
  void run_##name(const std::string& input); \
  std::vector<std::string> seeds_of_##name();
#include "targets.def"

/// Ends the process with the rule if it does not hold.
void require(bool holds, const char* rule);

/// A file of memory with a path, for readers of files.
class MemoryFile {
 public:
  explicit MemoryFile(const std::string& content);
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  int file_;
  std::string path_;
};

/// Splits an input into parts: before each a byte with its length.
std::vector<std::string> parts_of(const std::string& input);
/// The input with these parts, each at most 255 bytes long.
std::string input_of(const std::vector<std::string>& parts);

/// The bytes of a plain struct.
template <typename Record>
std::string bytes_of(const Record& record) {
  return std::string(reinterpret_cast<const char*>(&record), sizeof record);
}

/// Moves the process into a network namespace of its own, where no other process is asked or
/// answers. Where the system does not allow it, ends the process with the exit code of a skipped
/// test.
void leave_network();

}  // namespace fuzz
