// SPDX-License-Identifier: Apache-2.0
// The table of targets, and what they share.
#include "target.h"

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace fuzz {

const std::vector<Target>& targets() {
  static const std::vector<Target> all = {
#define FUZZ_TARGET(name, inputs) {#name, inputs, run_##name, seeds_of_##name},
#include "targets.def"
  };
  return all;
}

const Target* target_of(const std::string& name) {
  const auto found = std::find_if(targets().begin(), targets().end(),
                                  [&](const Target& target) { return name == target.name; });
  return found == targets().end() ? nullptr : &*found;
}

void require(bool holds, const char* rule) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", rule);
  std::abort();
}

MemoryFile::MemoryFile(const std::string& content)
    : file_(memfd_create("fuzz", MFD_CLOEXEC)), path_("/proc/self/fd/" + std::to_string(file_)) {
  require(file_ >= 0, "there are files of memory");
  for (std::size_t written = 0; written < content.size();) {
    const ssize_t step = write(file_, content.data() + written, content.size() - written);
    require(step > 0, "files of memory can be written");
    written += static_cast<std::size_t>(step);
  }
}

MemoryFile::~MemoryFile() {
  close(file_);
}

std::vector<std::string> parts_of(const std::string& input) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at < input.size();) {
    const std::size_t length = static_cast<unsigned char>(input[at]);
    parts.push_back(input.substr(at + 1, length));
    at += 1 + length;
  }
  return parts;
}

std::string input_of(const std::vector<std::string>& parts) {
  std::string input;
  for (const std::string& part : parts) {
    require(part.size() <= 255, "a part has at most 255 bytes");
    input += static_cast<char>(part.size());
    input += part;
  }
  return input;
}

void leave_network() {
  static const bool left = unshare(CLONE_NEWNET) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0;
  if (left) return;
  std::fprintf(stderr, "skipped: no namespace of the network can be made here\n");
  std::exit(77);
}

}  // namespace fuzz
