// Runs programs in other processes, so that a crash or a hang is a finding like any other, and
// makes a failing one small.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "program.h"

namespace cupool::property {

struct Options {
  std::string library;            ///< what is preloaded; "": the driver alone
  std::string sanitizer_runtime;  ///< has to come before it
  std::string mutation;           ///< fault in the engine (CUPOOL_TEST_MUTATION)
  std::string forgets;            ///< fault in the simulated driver (context_event_forgets)
  std::string free_mode;          ///< "": by the seed
  std::uint64_t first = 1;
  std::uint64_t count = 1000;
  unsigned jobs = 2;
  /// Not empty: stop at the first failing program; succeed only if its reason has these words.
  std::string expect_fault;
  /// Not empty: with expect_fault, go on after a program that fails with these words instead.
  std::string pass_over;
  bool shrink = true;
};

/// The environment in which the program of `seed` runs; the same for all of its batch.
struct Surroundings {
  std::vector<std::string> variables;
  std::string words;
};
Surroundings surroundings_of(const Options& options, std::uint64_t seed);
std::uint64_t end_of_batch(std::uint64_t seed);

/// Exit status of the whole run.
int supervise(const Options& options);

/// In the other process: runs the programs, or the one of a file. Exit status 1: one failed, and
/// the reason was printed.
int work_through(std::uint64_t first, std::uint64_t count, const std::string& forgets);
int replay(const std::string& path, const std::string& forgets);

}  // namespace cupool::property
