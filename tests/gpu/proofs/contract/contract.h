// SPDX-License-Identifier: Apache-2.0
// What the programs of the contract share: verdicts, facts, random sizes. Output, read by
// contract.py:
//   PASS name[: details]      the name must be the same in each run
//   FAIL name[: details]      counts unless the program fails there without cupool as well
//   fact same.KEY=VALUE       must be what it is without cupool
//   fact valid.KEY=0|1        1 without cupool means 1 with it
//   fact exact.KEY=BYTES      must be the same; bytes.KEY may differ by 64 MiB; others are recorded
#pragma once

#include <cstdarg>
#include <mutex>
#include <string>

#include "common/gpu_test.h"

namespace contract {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kGiB = size_t{1} << 30;

inline bool all_right = true;
inline std::mutex output;

inline bool verdict(bool right, const std::string& name) {
  const std::lock_guard<std::mutex> lock(output);
  std::printf("%s %s\n", right ? "PASS" : "FAIL", name.c_str());
  std::fflush(stdout);
  all_right = all_right && right;
  return right;
}

[[gnu::format(printf, 1, 2)]] inline void fact(const char* format, ...) {
  const std::lock_guard<std::mutex> lock(output);
  va_list arguments;
  va_start(arguments, format);
  std::printf("fact ");
  std::vprintf(format, arguments);
  std::printf("\n");
  std::fflush(stdout);
  va_end(arguments);
}

inline int exit_code() {
  return all_right ? 0 : 1;
}

inline bool asked(int argc, char** argv, const char* mode) {
  return argc > 1 && std::strcmp(argv[1], mode) == 0;
}

// Small and reproducible; each thread has its own.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 2654435761u + 88172645463325252u) {}

  uint64_t below(uint64_t bound) {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_ % bound;
  }

 private:
  uint64_t state_;
};

}  // namespace contract
