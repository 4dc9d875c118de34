// SPDX-License-Identifier: Apache-2.0
// What `cupool compare`, `observe` and `tune` say of runs that are unlike the usual: files that
// were not written, memory of other kinds, processes that leave no report or stay.
#include <signal.h>

#include <filesystem>
#include <fstream>

#include "command.h"

namespace cli {
namespace {

using preload::contains;
using preload::ProcessResult;
using preload::ScratchFolder;

std::string words() {
  return preload::probe_path("probe_words");
}

std::string script(const ScratchFolder& folder, const std::string& text) {
  std::string path = folder.path() + "/script";
  std::ofstream(path) << "#!/bin/sh\n"
                      << "case \"$LD_PRELOAD\" in *libcupool*) with=1;; *) with=0;; esac\n"
                      << text << "\n";
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  return path;
}

// The file of the run before is no result.
TEST(ComparedFiles, AreThoseThatTheRunWrote) {
  if (const char* reason = reason_without_shell()) GTEST_SKIP() << reason;
  const ScratchFolder folder;
  const std::string file = folder.path() + "/result";
  const std::string stale = script(folder, "[ $with = 1 ] || echo result > " + file);
  for (const char* runs : {"2", "5"}) {
    const ProcessResult result = cupool({"compare", "-n", runs, "--file", file, stale});
    EXPECT_EQ(result.exit_code, 1) << result.describe();
    EXPECT_TRUE(contains(result.out, "not written")) << result.out;
  }
  // Written anew, with the same content, and with the same time of it.
  for (const char* way : {"echo result > ", "cp -p $0 "}) {
    const std::string fresh = script(folder, way + file);
    const ProcessResult result = cupool({"compare", "-n", "5", "--file", file, fresh});
    EXPECT_EQ(result.exit_code, 0) << result.describe();
    EXPECT_TRUE(contains(result.out, " bytes")) << result.out;
    EXPECT_FALSE(contains(result.out, "not written")) << result.out;
  }
}

TEST(ComparedFiles, ThatNoRunWroteAreNotTheSame) {
  const ScratchFolder folder;
  const std::string input = folder.path() + "/input";
  std::ofstream(input) << "there before";
  for (const std::string& file : {folder.path() + "/typo", input}) {
    const ProcessResult result = cupool({"compare", "-n", "2", "--file", file, "/bin/true"});
    EXPECT_EQ(result.exit_code, 3) << result.describe();
    EXPECT_TRUE(contains(result.out, "no run wrote " + file)) << result.out;
    EXPECT_TRUE(contains(result.out, "not compared")) << result.out;
    EXPECT_FALSE(contains(result.out, "Same results")) << result.out;
  }
  for (const std::string& file : {folder.path(), std::string("/dev/zero")}) {
    const ProcessResult result = cupool({"compare", "-n", "2", "--file", file, "/bin/true"});
    EXPECT_EQ(result.exit_code, 2) << result.describe();
    EXPECT_TRUE(contains(result.err, file + ": not a regular file")) << result.err;
  }
}

// Outputs are large, and equal.
TEST(Compare, HoldsEqualOutputOnce) {
  const std::string megabytes = "print=800000";  // 20 MB, in each of ten runs
  preload::Command command;
  command.argv = {
      "/bin/sh", "-c",
      "ulimit -v 250000; exec " + tested_command() + " compare -n 5 " + words() + " " + megabytes};
  command.environment = environment();
  if (!preload::tested_build().sanitizer.empty()) GTEST_SKIP() << "a sanitizer maps terabytes";
  const ProcessResult result = preload::run(command);
  EXPECT_EQ(result.exit_code, 0) << result.describe();
}

// Kept memory of the default pool is a gain, too, and its idle bytes are seen at reports alone.
TEST(Compare, JudgesAProgramOfCudaMallocAsync) {
  for (const char* way : {"serve", "threshold"}) {
    const ProcessResult result =
        cupool({"compare", "-n", "2", "--async", way, words(), "async=200"});
    EXPECT_EQ(result.exit_code, 0) << result.describe();
    EXPECT_FALSE(contains(result.out, "No report")) << result.out;
    EXPECT_FALSE(contains(result.out, "tell nothing")) << result.out;
    EXPECT_TRUE(contains(result.out, "Same results, and ")) << result.out;
    EXPECT_EQ(contains(result.out, "cupool served page-locked"), std::string(way) == "serve")
        << result.out;
  }
  const ProcessResult off = cupool({"compare", "-n", "2", "--async", "off", words(), "async=200"});
  EXPECT_TRUE(contains(off.out, "as without cupool (CUPOOL_ASYNC=off)")) << off.out;
  EXPECT_TRUE(contains(off.out, "tell nothing")) << off.out;
}

// Of a process that reported, the report speaks.
TEST(Compare, SaysWhatAReportSaysWhereNothingWasServed) {
  for (const char* word : {"keep_device", "managed=20"}) {
    const ProcessResult result = cupool({"compare", "-n", "2", words(), word});
    EXPECT_EQ(result.exit_code, 0) << result.describe();
    EXPECT_FALSE(contains(result.out, "No report")) << result.out;
    EXPECT_FALSE(contains(result.out, "doctor")) << result.out;
  }
}

TEST(NoReport, IsExplainedByTheEnd) {
  const struct {
    std::vector<std::string> words;
    const char* says;
  } rows[] = {{{"loop=20", "kill=11"}, "a process that a signal ends writes no report"},
              {{"loop=10", "exec"}, "becomes another program (exec)"}};
  for (const auto& row : rows) {
    for (const char* command : {"compare", "observe"}) {
      std::vector<std::string> arguments = {command, words()};
      arguments.insert(arguments.end(), row.words.begin(), row.words.end());
      const ProcessResult result = cupool(arguments);
      EXPECT_TRUE(contains(result.out + result.err, row.says)) << result.describe();
    }
  }
  const ProcessResult observed = cupool({"observe", words(), "host=50"});
  EXPECT_TRUE(contains(observed.err, "cupool compare also judges page-locked")) << observed.err;
}

// Its report would come when nobody reads it.
TEST(NoReport, OfAProcessThatStaysIsWrittenNowhere) {
  const ScratchFolder folder;
  const std::string go = folder.path() + "/go";
  const std::string errors = folder.path() + "/errors";
  preload::Command command;
  // The process ends with the descriptors of a pipe that cat reads to its end.
  command.argv = {"/bin/sh", "-c",
                  "{ " + tested_command() + " observe " + words() + " stay loop=50 hold=" + go +
                      "; touch " + go + "; } 2>&1 | cat > " + errors};
  command.environment = environment();
  preload::run(command);
  const std::string text = preload::read_file(errors);
  EXPECT_TRUE(contains(text, "still ran at its end")) << text;
  EXPECT_FALSE(contains(text, "CUPOOL_STATS_FILE")) << text;
  EXPECT_FALSE(contains(text, "\"schema")) << text;
}

TEST(Trials, LeaveNothingBehindHoweverTheyEnd) {
  const ScratchFolder folder;
  const preload::Environment temporary = {{"TMPDIR", folder.path()}};
  EXPECT_EQ(cupool({"observe", words(), "loop=5", "kill=11"}, temporary).signal, SIGSEGV);
  EXPECT_EQ(cupool({"observe", words(), "loop=5", "kill=15"}, temporary).signal, SIGTERM);
  EXPECT_EQ(cupool({"compare", words(), "loop=5", "kill=15"}, temporary).signal, SIGTERM);
  preload::Command command;
  command.argv = {
      "/bin/sh", "-c",
      tested_command() + " tune -n 2 " + preload::probe_path("probe_runtime_shared") + " | true"};
  command.environment = environment(temporary);
  preload::run(command);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

// As `2>&1 | head -1` does: the reader has gone when the findings come.
TEST(Trials, LeaveNothingBehindWhenTheirReaderHasGone) {
  if (const char* reason = reason_without_shell()) GTEST_SKIP() << reason;
  const ScratchFolder folder;
  const ScratchFolder temporary;
  const std::string trace = folder.path() + "/run.csv";
  std::ofstream(trace) << "Thread,Action,Pointer,Size\n1,allocate,0x1,512\n1,free,0x1,512\n";
  const std::string program = preload::probe_path("probe_runtime_shared");
  for (const std::string& words : {"observe " + program, "compare -n 1 " + program,
                                   "tune -n 1 " + program, "replay -n 1 " + trace}) {
    preload::Command command;
    command.argv = {"/bin/sh", "-c", tested_command() + " " + words + " 2>&1 >/dev/null | true"};
    command.environment = environment({{"TMPDIR", temporary.path()}});
    preload::run(command);
    command.argv[2] = tested_command() + " " + words + " 2>&1 | true";
    preload::run(command);
    EXPECT_EQ(temporary.files(), std::vector<std::string>{}) << words;
  }
  // A reader that goes ends a program as without the command.
  preload::Command command;
  command.argv = {"/bin/sh", "-c",
                  "{ " + tested_command() + " observe yes; echo code=$? >&2; } | head -1"};
  command.environment = environment();
  const ProcessResult result = preload::run(command);
  EXPECT_EQ(result.out, "y\n");
  EXPECT_TRUE(contains(result.err, "code=141")) << result.describe();
  EXPECT_FALSE(contains(result.err, "Broken pipe")) << result.describe();
}

TEST(Observe, SaysThatItCannotKeepTheReport) {
  const std::string program = preload::probe_path("probe_runtime_shared");
  const ProcessResult full = cupool({"observe", "--json", "/dev/full", program});
  EXPECT_EQ(full.exit_code, 2) << full.describe();
  EXPECT_TRUE(contains(full.err, "cannot write /dev/full: No space left on device. Make room"))
      << full.err;
  EXPECT_TRUE(contains(full.err, "allocations took")) << "the findings all the same: " << full.err;
  const ProcessResult failed =
      cupool({"observe", "--json", "/dev/full", words(), "loop=5", "exit=7"});
  EXPECT_EQ(failed.exit_code, 7) << failed.describe();
}

// What the option's value is not: the program's own output, and a program.
TEST(Observe, RefusesAFileThatIsNoPlaceForAReport) {
  const ScratchFolder folder;
  const std::string program = script(folder, "echo ran");
  const ProcessResult output = cupool({"observe", "--json", "-", program});
  EXPECT_EQ(output.exit_code, 2) << output.describe();
  EXPECT_EQ(output.out, "");
  EXPECT_EQ(output.err,
            "cupool: --json -: standard output is the program's. Name a file: --json "
            "report.json\n");
  for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{{}, {"true"}}) {
    std::vector<std::string> arguments = {"observe", "--json", program};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const std::string before = preload::read_file(program);
    const ProcessResult result = cupool(arguments);
    EXPECT_EQ(result.exit_code, 2) << result.describe();
    EXPECT_TRUE(contains(result.err,
                         "a program, which the report would overwrite. To observe it: "
                         "cupool observe --json report.json -- " +
                             program))
        << result.err;
    EXPECT_EQ(preload::read_file(program), before);
  }
  EXPECT_EQ(folder.files(), std::vector<std::string>{program});
}

// What times are worth there.
TEST(Trials, SayThatTheDeviceIsSimulated) {
  const ScratchFolder folder;
  const std::string trace = folder.path() + "/run.csv";
  std::ofstream(trace) << "Thread,Action,Pointer,Size\n1,allocate,0x1,512\n1,free,0x1,512\n";
  const std::string program = preload::probe_path("probe_runtime_shared");
  const std::string line = "\nOn cupool's simulated device: times say nothing of a GPU.\n";
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"observe", program},
                                             {"compare", "-n", "1", program},
                                             {"tune", "-n", "1", program},
                                             {"replay", "-n", "1", trace}}) {
    const ProcessResult result = cupool(words);
    EXPECT_TRUE(contains(words[0] == "observe" ? result.err : result.out, line))
        << result.describe();
  }
  const ProcessResult none = cupool({"compare", "-n", "1", "true"});
  EXPECT_FALSE(contains(none.out, "simulated")) << none.out;
}

TEST(Trials, SayWhichSignalEndedThem) {
  const ProcessResult result = cupool({"compare", words(), "loop=5", "kill=15"});
  EXPECT_EQ(result.signal, SIGTERM) << result.describe();
  EXPECT_TRUE(contains(result.err, "signal 15 ended the program")) << result.err;
}

// The variables that the command decides are of no account, and bad ones are told.
TEST(Trials, AreJudgedWithoutTheEnvironmentsOwnMode) {
  for (const char* variable : {"CUPOOL_MODE=observe", "CUPOOL_MODE=off", "CUPOOL_ENABLE=0"}) {
    const std::string text = variable;
    const std::size_t equals = text.find('=');
    const ProcessResult result = cupool({"compare", "-n", "1", words(), "loop=100"},
                                        {{text.substr(0, equals), text.substr(equals + 1)}});
    EXPECT_EQ(result.exit_code, 0) << result.describe();
    EXPECT_TRUE(contains(result.out, "peak GPU memory")) << result.out;
    EXPECT_EQ(result.err, "");
  }
  const ProcessResult wrong =
      cupool({"compare", "-n", "1", words(), "loop=100"}, {{"CUPOOL_FREE_MODE", "bogus"}});
  EXPECT_TRUE(contains(wrong.err, "CUPOOL_FREE_MODE=\"bogus\" is not understood")) << wrong.err;
}

// Orphans of the program are the command's, and one that has ended is no process any more.
TEST(Trials, LetAProgramSeeThatItsHelperHasEnded) {
  if (const char* reason = reason_without_shell()) GTEST_SKIP() << reason;
  const ScratchFolder folder;
  const std::string said = folder.path() + "/said";
  const std::string program = script(folder,
                                     "pid=$(sh -c 'sleep 0.2 >/dev/null & echo $!')\n"
                                     "for i in 1 2 3 4 5 6 7 8 9 10; do\n"
                                     "  kill -0 $pid 2>/dev/null || { echo ended >> " +
                                         said +
                                         "; exit 0; }\n"
                                         "  sleep 1\n"
                                         "done\n"
                                         "echo runs >> " +
                                         said);
  const ProcessResult result = cupool({"compare", "-n", "1", program});
  EXPECT_EQ(preload::read_file(said), "ended\nended\n") << result.describe();
}

TEST(Tune, DoesNotJudgeByOneRun) {
  const ProcessResult result =
      cupool({"tune", "-n", "1", "--", preload::probe_path("probe_runtime_shared")});
  EXPECT_EQ(result.exit_code, 1) << result.describe();
  EXPECT_TRUE(contains(result.out, "fewer than three runs prove little")) << result.out;
  EXPECT_FALSE(contains(result.out, "keep them")) << result.out;
}

}  // namespace
}  // namespace cli
