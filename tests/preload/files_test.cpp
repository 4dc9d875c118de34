// SPDX-License-Identifier: Apache-2.0
// Files that cupool writes to, and those that it must not (contract 11): what is standard error,
// what has only its number, and whose file a name is.
#include "harness.h"

namespace preload {
namespace {

const std::string kReport = "\n  Time    ";

// --- standard error ---

struct Redirection {
  const char* mode;
  bool starts_closed;
  bool in_file;  ///< the report is in the probe's file
  bool in_pipe;  ///< or where the process's standard error went at its start
};

void PrintTo(const Redirection& row, std::ostream* out) {
  *out << row.mode << (row.starts_closed ? "_started_closed" : "");
}

class StandardError : public testing::TestWithParam<Redirection> {};

TEST_P(StandardError, GetsTheReportAndAProgramsFileDoesNot) {
  const ScratchFolder folder;
  const std::string file = folder.path() + "/file";
  const std::string probe = probe_path("probe_files") + " mode=" + GetParam().mode +
                            " file=" + file + (GetParam().starts_closed ? " 2>&-" : "");
  Command command;
  command.argv = {"sh", "-c", "exec " + probe};
  command.environment = base_environment();
  add_preload(&command.environment);
  const ProcessResult result = run(command);
  EXPECT_EQ(result.exit_code, 0) << result.describe();
  EXPECT_EQ(contains(result.err, kReport), GetParam().in_pipe) << result.describe();
  const std::string content = read_file(file);
  EXPECT_EQ(contains(content, kReport), GetParam().in_file) << content;
  if (!GetParam().in_file) {
    EXPECT_EQ(content, "");
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, StandardError,
    testing::Values(
        Redirection{"as_is", false, false, true}, Redirection{"as_is", true, false, false},
        Redirection{"close", false, false, false}, Redirection{"own", false, false, false},
        Redirection{"own", true, false, false}, Redirection{"own_log", false, false, false},
        Redirection{"own_log", true, false, false}, Redirection{"dup2", false, true, false},
        Redirection{"dup2", true, true, false}, Redirection{"dup3", false, true, false},
        Redirection{"freopen", false, true, false}, Redirection{"daemon", false, true, false},
        Redirection{"vfork", false, false, true}),
    [](const auto& row) { return testing::PrintToString(row.param); });

// --- other descriptors that an option names ---

// Each of the three kinds of output; an unknown option makes a log line.
class NamedDescriptor : public testing::TestWithParam<const char*> {
 protected:
  static std::string file_after(const ScratchFolder& folder, const char* mode, const char* name) {
    const std::string file = folder.path() + "/file";
    const ProcessResult result =
        run_with_library(std::string("probe_files mode=") + mode + " file=" + file,
                         {{GetParam(), name}, {"CUPOOL_NO_SUCH_OPTION", "1"}});
    EXPECT_EQ(result.exit_code, 0) << result.describe();
    return read_file(file);
  }
};

TEST_P(NamedDescriptor, IsNotAProgramsFileOfThatNumber) {
  for (const char* name : {"/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"}) {
    const ScratchFolder folder;
    EXPECT_EQ(file_after(folder, "own_output", name), "") << name;
  }
  const ScratchFolder folder;
  EXPECT_EQ(file_after(folder, "own", "/dev/stderr"), "");
}

TEST_P(NamedDescriptor, IsWhatTheProgramPutsThere) {
  const ScratchFolder folder;
  EXPECT_NE(file_after(folder, "dup2_output", "/dev/stdout"), "");
}

INSTANTIATE_TEST_SUITE_P(All, NamedDescriptor,
                         testing::Values("CUPOOL_STATS_FILE", "CUPOOL_TRACE", "CUPOOL_LOG_FILE"),
                         [](const auto& row) { return std::string(row.param); });

// --- names of files ---

ProcessResult run_in(const std::string& folder, const std::string& probe,
                     const Environment& extra) {
  Command command;
  command.argv = {"sh", "-c",
                  "cd " + folder + " && exec " + probe_path("probe_files") + " " + probe};
  command.environment = with(base_environment(), extra);
  add_preload(&command.environment);
  return run(command);
}

TEST(FileNames, AreOfTheDirectoryThatTheyWereReadIn) {
  const ScratchFolder folder;  // the pattern's letters in its name are none
  const std::string begin = folder.path() + "/50%p";
  const std::string end = folder.path() + "/end";
  ASSERT_EQ(run({{"mkdir", begin, end}, base_environment(), std::chrono::seconds(60)}).exit_code,
            0);
  const ProcessResult result = run_in(begin, "mode=chdir file=" + end,
                                      {{"CUPOOL_STATS_FILE", "report"},
                                       {"CUPOOL_TRACE", "./trace.csv"},
                                       {"CUPOOL_LOG_FILE", "log"},
                                       {"CUPOOL_NO_SUCH_OPTION", "1"}});
  EXPECT_EQ(result.exit_code, 0) << result.describe();
  EXPECT_EQ(result.err, "");
  EXPECT_TRUE(contains(read_file(begin + "/report"), kReport));
  EXPECT_TRUE(contains(read_file(begin + "/log"), "CUPOOL_NO_SUCH_OPTION"));
  EXPECT_EQ(lines_of(read_file(begin + "/trace.csv")).size(), 1u + 2u * 6001u);
  for (const char* name : {"/report", "/log", "/trace.csv"}) EXPECT_EQ(read_file(end + name), "");
}

TEST(FileNames, OfTwoProcessesAreTheLastOnes) {
  const ScratchFolder folder;
  const ProcessResult result = run_in(folder.path(), "mode=two",
                                      {{"CUPOOL_STATS", "json"}, {"CUPOOL_STATS_FILE", "r.json"}});
  EXPECT_EQ(result.exit_code, 0) << result.describe();
  EXPECT_TRUE(nlohmann::json::accept(read_file(folder.path() + "/r.json")));
  EXPECT_TRUE(contains(result.err, "another process had written meanwhile")) << result.err;
  EXPECT_EQ(folder.files().size(), 1u) << "something is left beside it";
}

TEST(FileNames, OfAFifoThatNobodyReadsHoldNobodyBack) {
  for (const char* option : {"CUPOOL_LOG_FILE", "CUPOOL_STATS_FILE", "CUPOOL_TRACE"}) {
    const ScratchFolder folder;
    const std::string fifo = folder.path() + "/fifo";
    ASSERT_EQ(run({{"mkfifo", fifo}, base_environment(), std::chrono::seconds(60)}).exit_code, 0);
    Command command;
    command.argv = {probe_path("probe_files")};
    command.environment =
        with(base_environment(), {{option, fifo}, {"CUPOOL_NO_SUCH_OPTION", "1"}});
    add_preload(&command.environment);
    command.limit = std::chrono::seconds(10);
    const ProcessResult result = run(command);
    EXPECT_EQ(result.exit_code, 0) << result.describe();
    EXPECT_TRUE(contains(result.err, std::string("cannot write ") + option)) << result.describe();
    EXPECT_TRUE(contains(result.err, "CUPOOL_NO_SUCH_OPTION")) << result.describe();
    EXPECT_TRUE(contains(result.err, kReport)) << result.describe();
  }
}

}  // namespace
}  // namespace preload
