// SPDX-License-Identifier: Apache-2.0
// How the tests run a probe: with or without the preload, on the simulated device, with the report
// in a file of its own. Every test folder is fresh, so that an unexpected report is seen.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "process.h"

namespace preload {

using Environment = std::map<std::string, std::string>;

/// A directory for one test's files, removed with its content at the end.
class ScratchFolder {
 public:
  ScratchFolder();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::string& path() const { return path_; }
  std::vector<std::string> files() const;

 private:
  std::string path_;
};

std::string read_file(const std::string& path);

// How often each function of the driver was called, from the file that CUPOOL_SIM_CALLS names.
std::map<std::string, uint64_t> calls_in(const std::string& file);

/// One run of a probe under the preload, with its reports.
struct PreloadedRun {
  ProcessResult process;
  std::vector<nlohmann::json> reports;  ///< one for each process that wrote one

  /// The value of a counter, summed over devices and reports.
  uint64_t counter(const std::string& key) const;
  std::string describe() const { return process.describe(); }
};

/// A row of a table of environments that a test runs in.
struct NamedEnvironment {
  const char* name;
  Environment extra;
};

inline void PrintTo(const NamedEnvironment& row, std::ostream* out) {
  *out << row.name;
}

/// `environment`, with the variables of `more` added or replaced.
Environment with(Environment environment, const Environment& more);

/// `more`, with the simulated driver of a folder of tests/sim that lacks what its name says.
Environment old_driver(const char* folder, const Environment& more = {});

bool contains(const std::string& text, const std::string& part);

std::vector<std::string> lines_of(const std::string& text);

/// `text` as a part of a test's name: letters and digits stay.
std::string name_of(const std::string& text);

/// The variables that every run gets: path, simulated driver, nothing of CUPOOL_*.
Environment base_environment();

/// Whose library, probes and simulated driver are run: this build, or the one whose folder
/// PRELOAD_TEST_BUILD names. These tests only start processes, so that one build of them does for
/// all.
struct TestedBuild {
  std::string folder;
  std::string sanitizer;          ///< "address", "thread", "undefined" or nothing
  std::string sanitizer_runtime;  ///< what must be loaded before the library, or nothing

  bool has_thread_sanitizer() const { return sanitizer == "thread"; }
  /// One that watches memory, and so has a heap and locks of its own.
  bool has_memory_sanitizer() const { return has_thread_sanitizer() || sanitizer == "address"; }
  std::string simulator() const { return folder + "/tests/sim"; }
  std::string simulated_driver() const { return simulator() + "/lib"; }
};
const TestedBuild& tested_build();

/// How often something is done that does not change its nature: a sanitized program takes ten times
/// as long for it.
int often(int times);

/// Why `probe` cannot be run with the tested build, or nothing.
const char* reason_to_skip(std::string_view probe);

/// The library that is tested: the tested build's, or the one that PRELOAD_TEST_LIBRARY names.
std::string library_path();

/// Adds the library (and the sanitizer runtime that must precede it) to LD_PRELOAD.
void add_preload(Environment* environment);

/// A probe's full path.
std::string probe_path(const std::string& name);

/// Runs probe (name and arguments separated by blanks) without the preload.
ProcessResult run_plain(const std::string& probe, const Environment& extra = {});

/// Runs it with the preload and nothing set: its report goes to standard error.
ProcessResult run_with_library(const std::string& probe, const Environment& extra = {});

/// Runs it with the preload; reports go to JSON files which are read back.
PreloadedRun run_preloaded(const std::string& probe, const Environment& extra = {});

/// The two numbers of the probe's "counts" line.
struct Counts {
  uint64_t mallocs = 0;
  uint64_t frees = 0;
};
Counts counts_of(const std::string& out);

/// Runs the probe both ways and expects the same standard output and exit code, no word of ours
/// on standard error, and `expected_reports` reports. Returns the preloaded run.
PreloadedRun expect_same(const std::string& probe, int expected_exit_code = 0,
                         size_t expected_reports = 1, const Environment& extra = {});

/// Expects a thread of cupool's in a program with the options `asked` that write a report, and none
/// without them or without a report.
void expect_thread_only_with(const Environment& asked);

/// Expects that the report counts what the probe says it did, and that its bytes add up.
void expect_counts(const PreloadedRun& result);

/// docs/statistics.md: application + retired + cached (+ rounding) = held, for each device.
void expect_identity(const nlohmann::json& report);

}  // namespace preload
