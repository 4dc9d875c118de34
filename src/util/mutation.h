// SPDX-License-Identifier: Apache-2.0
// Mutation testing: faults in the engine that the tests have to find. Only a library built with
// CUPOOL_MUTATIONS has them. In the shipped one each is the constant false, which a test checks.
#pragma once

#ifdef CUPOOL_MUTATIONS

#include <cstdlib>
#include <cstring>

namespace cupool::util {

/// Whether CUPOOL_TEST_MUTATION names this fault. Reads the environment at each call: speed does
/// not matter in tests.
inline bool mutated(const char* name) {
  const char* wanted = std::getenv("CUPOOL_TEST_MUTATION");
  return wanted != nullptr && std::strcmp(wanted, name) == 0;
}

}  // namespace cupool::util

#define CUPOOL_MUTATED(name) ::cupool::util::mutated(name)

#else

#define CUPOOL_MUTATED(name) false

#endif
