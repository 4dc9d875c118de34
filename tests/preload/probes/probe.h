// SPDX-License-Identifier: Apache-2.0
// What every probe program shares: checks that end the program with a clear line, stable output,
// and the line of counts that the tests hold against cupool's report.
// Output must not contain pointers, times or thread order: it is compared with and without us.
#pragma once

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace probe {

inline constexpr int kWrongResult = 3;  // exit code: the program's own check found a wrong result
inline constexpr int kFailedCall = 4;   // exit code: a CUDA call failed that had to work

[[noreturn]] inline void fail_call(const char* call, int code, const char* file, int line) {
  std::printf("FAILED %s = %d\n", call, code);
  std::fflush(stdout);
  std::fprintf(stderr, "%s:%d: %s = %d\n", file, line, call, code);
  std::_Exit(kFailedCall);
}

[[noreturn]] inline void fail_check(const char* what, const char* file, int line) {
  std::printf("WRONG %s\n", what);
  std::fflush(stdout);
  std::fprintf(stderr, "%s:%d: wrong: %s\n", file, line, what);
  std::_Exit(kWrongResult);
}

// How many bytes are not `value`. Right memory is recognised by one memcmp: under a sanitizer a
// loop over every byte of every block would take most of the test's time.
inline uint64_t count_other_bytes(const unsigned char* bytes, size_t size, int value) {
  if (size == 0 || (bytes[0] == value && std::memcmp(bytes, bytes + 1, size - 1) == 0)) return 0;
  uint64_t others = 0;
  for (size_t i = 0; i < size; ++i) others += bytes[i] != value;
  return others;
}

// One line that the tests parse: what this process asked of cudaMalloc and its kin.
inline void print_counts(uint64_t mallocs, uint64_t frees) {
  std::printf("counts mallocs=%" PRIu64 " frees=%" PRIu64 "\n", mallocs, frees);
}

// Flushed at once: a child that is forked later prints no line again.
inline void say(const char* what, long value) {
  std::printf("%s %ld\n", what, value);
  std::fflush(stdout);
}

// "name=value" on the command line, or the default.
inline const char* argument(int argc, char** argv, const char* name, const char* otherwise) {
  const size_t length = std::strlen(name);
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], name, length) == 0 && argv[i][length] == '=') {
      return argv[i] + length + 1;
    }
  }
  return otherwise;
}

inline bool argument_is(int argc, char** argv, const char* name, const char* value) {
  return std::strcmp(argument(argc, argv, name, ""), value) == 0;
}

inline long number(int argc, char** argv, const char* name, long otherwise) {
  const char* text = argument(argc, argv, name, nullptr);
  return text == nullptr ? otherwise : std::strtol(text, nullptr, 10);
}

}  // namespace probe

// The call must succeed (both CUDA interfaces use 0 for that).
#define MUST(call)                                                              \
  do {                                                                          \
    const int must_code = static_cast<int>(call);                               \
    if (must_code != 0) probe::fail_call(#call, must_code, __FILE__, __LINE__); \
  } while (0)

// The program's own result must be right.
#define CHECK(condition)                                                 \
  do {                                                                   \
    if (!(condition)) probe::fail_check(#condition, __FILE__, __LINE__); \
  } while (0)
