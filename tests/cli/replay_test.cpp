// SPDX-License-Identifier: Apache-2.0
// `cupool replay`: reading a trace, and playing it in each way on the simulated device, whose judge
// stops a player that touches memory out of order.
#include <fstream>
#include <regex>

#include "cli/shell/exit_code.h"
#include "cli/trial/replay_trace.h"
#include "command.h"

namespace cli {
namespace {

using cupool::cli::parse_trace;
using cupool::cli::ReplayTrace;
using cupool::cli::UsageError;
using preload::contains;
using preload::ProcessResult;
using preload::ScratchFolder;

const std::string kHeader = "Thread,Time,Action,Pointer,Size,Stream\n";

std::string trace_error_of(const std::string& text) {
  try {
    parse_trace(text, "t.csv");
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(ReplayTrace, JoinsFreesToTheirAllocations) {
  const ReplayTrace trace = parse_trace(kHeader +
                                            "1,00:00:00.000001,allocate,0x1000,100,0\n"
                                            "2,00:00:00.000002,free,0x1000,100,0\n"
                                            "2,00:00:00.000003,allocate,0x1000,300,0\r\n"
                                            "1,00:00:00.000004,allocate,0x2000,50,0\n"
                                            "1,00:00:00.000005,free,0x1000,300,0\n"
                                            "1,00:00:00.000006,allocate failure,(nil),9,0\n"
                                            "1,00:00:00.000007,free,0x9000,7,0",
                                        "t.csv");
  EXPECT_EQ(trace.allocations, 3u);
  EXPECT_EQ(trace.frees, 2u);
  EXPECT_EQ(trace.skipped, 2u);
  EXPECT_EQ(trace.blocks, 3u);
  EXPECT_EQ(trace.peak_bytes, 350u);
  ASSERT_EQ(trace.threads.size(), 2u);
  ASSERT_EQ(trace.threads[0].size(), 3u);
  ASSERT_EQ(trace.threads[1].size(), 2u);
  EXPECT_EQ(trace.threads[1][0].block, trace.threads[0][0].block);
  EXPECT_TRUE(trace.threads[1][0].is_free);
  EXPECT_EQ(trace.threads[0][2].block, trace.threads[1][1].block) << "the address was used again";
}

TEST(ReplayTrace, TakesColumnsWhereverTheyStand) {
  const ReplayTrace trace =
      parse_trace("Action,Size,Pointer,Thread\nallocate,8,a,1\nfree,8,a,1\n", "t.csv");
  EXPECT_EQ(trace.allocations, 1u);
  EXPECT_EQ(trace.frees, 1u);
}

TEST(ReplayTrace, NamesFileAndLineOfWhatIsWrong) {
  EXPECT_TRUE(contains(trace_error_of(""), "t.csv: is empty"));
  EXPECT_TRUE(contains(trace_error_of("{}\n"), "not a trace of allocations: no column Thread"));
  EXPECT_TRUE(
      contains(trace_error_of(kHeader + "1,t,allocate,0x1\n"), "t.csv, line 2: too few columns"));
  EXPECT_TRUE(contains(trace_error_of(kHeader + "\n1,t,allocate,0x1,-5,0\n"),
                       "t.csv, line 3: the size is not a number of bytes"));
  EXPECT_TRUE(
      contains(trace_error_of(kHeader + "1,t,dance,0x1,5,0\n"), "line 2: unknown action dance"));
  EXPECT_TRUE(contains(trace_error_of(kHeader + "1,t,allocate,0x1,18446744073709551615,0\n"
                                                "1,t,allocate,0x2,1,0\n"),
                       "line 3: more live bytes than 64 bits count"));
}

// A trace that only the command itself can read, as `zcat run.csv.gz | cupool replay -` gives it.
TEST(Replay, PlaysATraceFromStandardInputAndFromAPipe) {
  if (const char* reason = reason_without_shell()) GTEST_SKIP() << reason;
  const ScratchFolder folder;
  const std::string trace = folder.path() + "/run.csv";
  std::ofstream(trace) << kHeader << "1,t,allocate,0x1,512,0\n1,t,free,0x1,512,0\n";
  for (const char* line :
       {"\"$0\" replay -n 1 - < \"$1\"", "cat \"$1\" | \"$0\" replay -n 1 -",
        "\"$0\" replay -n 1 /dev/stdin < \"$1\"", "cat \"$1\" | \"$0\" replay -n 1 /dev/fd/0",
        "exec 5< \"$1\"; rm \"$1\"; \"$0\" replay -n 1 - <&5"}) {
    preload::Command command;
    command.argv = {"/bin/sh", "-c", line, tested_command(), trace};
    command.environment = environment({{"TMPDIR", folder.path()}});
    const ProcessResult result = preload::run(command);
    EXPECT_EQ(result.exit_code, 0) << line << result.describe();
    EXPECT_TRUE(contains(result.out, "1 allocations and 1 frees of 1 thread")) << result.out;
    EXPECT_TRUE(contains(result.out, "\n  cupool ")) << result.out;
  }
  EXPECT_EQ(folder.files(), std::vector<std::string>{}) << "copies go with the command";
}

TEST(Replay, PlaysWhatTheLibraryTraced) {
  const ScratchFolder folder;
  const std::string trace = folder.path() + "/run.csv";
  const ProcessResult run = cupool({"run", "--trace", trace, "--stats", "off", "--",
                                    preload::probe_path("probe_runtime_shared"), "threads=3"});
  ASSERT_EQ(run.exit_code, 0) << run.describe();
  const ReplayTrace read = parse_trace(cupool::cli::read_trace(trace), trace);
  EXPECT_GT(read.allocations, 10u);
  EXPECT_EQ(read.skipped, 0u);
  for (const bool touch : {false, true}) {
    std::vector<std::string> arguments = {"replay", "-n", "1", trace};
    if (touch) arguments.emplace_back("--touch");
    const ProcessResult result = cupool(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.describe();
    EXPECT_EQ(result.err, "");
    for (const char* way : {"legacy (cuMemAlloc)", "async (cuMemAllocAsync)", "cupool "}) {
      EXPECT_TRUE(contains(result.out, way)) << result.out;
    }
  }
}

// Threads free what others allocated, and a block is written while another thread frees it.
TEST(Replay, PlaysFreesOfOtherThreads) {
  const ScratchFolder folder;
  const std::string trace = folder.path() + "/cross.csv";
  std::ofstream stream(trace);
  stream << kHeader;
  for (int i = 0; i < 200; ++i) {
    const int thread = i % 4;
    stream << thread << ",t,allocate,0x" << i << ",65536,0\n";
    stream << (thread + 1) % 4 << ",t,free,0x" << i << ",65536,0\n";
  }
  stream.close();
  const ProcessResult result = cupool({"replay", "-n", "2", "--touch", trace});
  EXPECT_EQ(result.exit_code, 0) << result.describe();
  EXPECT_TRUE(contains(result.out, "200 allocations and 200 frees of 4 threads")) << result.out;
}

TEST(Replay, CountsWhatDoesNotFit) {
  const ScratchFolder folder;
  const std::string trace = folder.path() + "/large.csv";
  std::ofstream(trace) << kHeader << "1,t,allocate,0x1,9000000000,0\n1,t,free,0x1,9000000000,0\n";
  const ProcessResult result = cupool({"replay", "-n", "1", trace});
  EXPECT_EQ(result.exit_code, 0) << result.describe();
  EXPECT_TRUE(std::regex_search(result.out, std::regex("cupool .* 1\n"))) << result.out;
}

TEST(Replay, EndsWith2ForWhatIsNoTrace) {
  const ScratchFolder folder;
  const std::string empty = folder.path() + "/empty.csv";
  std::ofstream(empty) << kHeader;
  EXPECT_EQ(cupool({"replay", empty}).exit_code, 2);
  EXPECT_EQ(cupool({"replay", folder.path() + "/none.csv"}).exit_code, 2);
  EXPECT_EQ(cupool({"replay"}).exit_code, 2);
}

TEST(Replay, SaysThatThereIsNoDriver) {
  const ScratchFolder folder;
  const std::string trace = folder.path() + "/one.csv";
  std::ofstream(trace) << kHeader << "1,t,allocate,0x1,8,0\n";
  const ProcessResult result = cupool({"replay", trace}, {{"CUPOOL_SIM_DEVICES", "0"}});
  EXPECT_EQ(result.exit_code, 2) << result.describe();
  EXPECT_TRUE(contains(result.err, "cuInit failed with error 100 (CUDA_ERROR_NO_DEVICE)"))
      << result.err;
  EXPECT_TRUE(contains(result.err, "cupool doctor")) << result.err;
}

}  // namespace
}  // namespace cli
