// SPDX-License-Identifier: Apache-2.0
// What the real-GPU programs share. Their output has four kinds of line, which compare.py reads:
//   result ...                    must be the same with and without the preload
//   info ...                      recorded, may differ
//   counts mallocs=N frees=N      must be what the report says
//   time NAME=VALUE               goes into the table
#pragma once

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define MUST(call)                                                                    \
  do {                                                                                \
    const int must_code = static_cast<int>(call);                                     \
    if (must_code != 0) {                                                             \
      std::fprintf(stderr, "%s:%d: %s = %d\n", __FILE__, __LINE__, #call, must_code); \
      std::_Exit(4);                                                                  \
    }                                                                                 \
  } while (0)

namespace gpu_test {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

inline long number(int argc, char** argv, const char* name, long otherwise) {
  const size_t length = std::strlen(name);
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], name, length) == 0 && argv[i][length] == '=') {
      return std::strtol(argv[i] + length + 1, nullptr, 10);
    }
  }
  return otherwise;
}

inline void print_counts(uint64_t mallocs, uint64_t frees) {
  std::printf("counts mallocs=%" PRIu64 " frees=%" PRIu64 "\n", mallocs, frees);
}

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0.0 : values[values.size() / 2];
}

}  // namespace gpu_test
