// SPDX-License-Identifier: Apache-2.0
// Runs programs in other processes, so that a crash or a hang is an ordinary failure, and shrinks a
// failing program.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "program.h"
#include "soak.h"

namespace cupool::property {

struct Options {
  std::string library;            ///< the preloaded library; "": the driver alone
  std::string sanitizer_runtime;  ///< to be preloaded before it
  std::string mutation;           ///< fault in the engine (CUPOOL_TEST_MUTATION)
  std::string forgets;            ///< fault in the simulated driver (context_event_forgets)
  std::string free_mode;          ///< "": chosen by the seed
  std::string async;              ///< CUPOOL_ASYNC; "": its default
  std::uint64_t first = 1;
  std::uint64_t count = 1000;
  unsigned jobs = 2;
  /// Not empty: stop at the first failing program, and succeed only if its reason contains this
  /// text.
  std::string expect_fault;
  /// Not empty: with expect_fault, go on after a program that fails with these words instead.
  std::vector<std::string> pass_over;
  bool shrink = true;
  /// Each program in a process of its own, which is in one lane (docs/design.md) at its start.
  bool lane = false;
  /// Programs about page-locked memory, each in a process of its own: one that has several contexts
  /// is not served any more.
  bool host = false;
  /// Programs with a theme (generator.h), each in a process of its own.
  bool wide = false;
  std::string theme;  ///< not empty: of this theme only
  Soak soak;
  bool soaks() const { return soak.seconds != 0 || soak.in_rounds != 0; }
};

/// The environment in which the program of `seed` runs; the same for all of its batch.
struct Surroundings {
  std::vector<std::string> variables;
  std::string words;
};
Surroundings surroundings_of(const Options& options, std::uint64_t seed);
std::uint64_t end_of_batch(const Options& options, std::uint64_t seed);

/// Exit status of the whole run.
int supervise(const Options& options);

/// Becomes the process of a soak. Returns only if that fails.
int start_soak(const Options& options);

/// In the other process: runs the programs, or the program of a file. Exit status 1: one failed,
/// and its reason was printed.
int work_through(std::uint64_t first, std::uint64_t count, const std::string& forgets);
int replay(const std::string& path, const std::string& forgets);

}  // namespace cupool::property
