// Faults that tests put into the engine on purpose, to see that they are found. Only a library
// built with CUPOOL_MUTATIONS has them; in the shipped one each is the constant false, and a test
// looks.
#pragma once

#ifdef CUPOOL_MUTATIONS

#include <cstdlib>
#include <cstring>

namespace cupool::util {

/// Whether CUPOOL_TEST_MUTATION names this fault. Read at each call: tests are not in a hurry.
inline bool mutated(const char* name) {
  const char* wanted = std::getenv("CUPOOL_TEST_MUTATION");
  return wanted != nullptr && std::strcmp(wanted, name) == 0;
}

}  // namespace cupool::util

#define CUPOOL_MUTATED(name) ::cupool::util::mutated(name)

#else

#define CUPOOL_MUTATED(name) false

#endif
