// SPDX-License-Identifier: Apache-2.0
// The targets for libFuzzer: CUPOOL_TEST_FUZZ names the one (run.sh).
#include <cstdio>
#include <cstdlib>

#include "target.h"

namespace {
const fuzz::Target* chosen = nullptr;
}

extern "C" __attribute__((visibility("default"))) int LLVMFuzzerInitialize(int*, char***) {
  const char* const name = std::getenv("CUPOOL_TEST_FUZZ");
  chosen = fuzz::target_of(name == nullptr ? "" : name);
  if (chosen != nullptr) return 0;
  std::fprintf(stderr, "CUPOOL_TEST_FUZZ names no target of tests/fuzz/targets.def\n");
  std::exit(2);
}

extern "C" __attribute__((visibility("default"))) int LLVMFuzzerTestOneInput(
    const std::uint8_t* bytes, std::size_t size) {
  chosen->run(std::string(reinterpret_cast<const char*>(bytes), size));
  return 0;
}
