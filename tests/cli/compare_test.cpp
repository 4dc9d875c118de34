// SPDX-License-Identifier: Apache-2.0
// `cupool compare`, `cupool observe` and `cupool tune`: a program run both ways.
#include <algorithm>
#include <filesystem>
#include <fstream>

#include "cli/trial/run_progress.h"
#include "cli/trial/trials.h"
#include "cli/trial/tuning.h"
#include "command.h"
#include "config/settings.h"
#include "example_report.h"
#include "pseudo_terminal.h"

namespace cli {
namespace {

using cupool::cli::parse_report;
using cupool::cli::Report;
using cupool::cli::tune;
using cupool::cli::Tuning;
using nlohmann::json;
using preload::contains;
using preload::ProcessResult;
using preload::ScratchFolder;

std::string shell_script(const ScratchFolder& folder, const std::string& text) {
  std::string path = folder.path() + "/script";
  std::ofstream(path) << "#!/bin/sh\n" << text << "\n";
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  return path;
}

// In a script: whether it runs with cupool.
const char* const kWithCupool = "case \"$LD_PRELOAD\" in *libcupool*) with=1;; *) with=0;; esac\n";

TEST(Compare, SaysThatAProgramIsTheSame) {
  const ProcessResult result =
      cupool({"compare", "-n", "2", "--", preload::probe_path("probe_runtime_shared")});
  EXPECT_EQ(result.exit_code, 0) << result.describe();
  EXPECT_TRUE(contains(result.out, "Same results")) << result.out;
  EXPECT_TRUE(contains(result.out, "peak GPU memory")) << result.out;
  EXPECT_TRUE(contains(result.out, "2 runs each")) << result.out;
  EXPECT_EQ(result.err, "") << "progress is for terminals";
}

// Times without work for cupool are noise, which must not read as its gain.
TEST(Compare, GivesNoVerdictOnTheTimesOfAProgramWithoutCuda) {
  const ProcessResult result = cupool({"compare", "--", "true"});
  EXPECT_EQ(result.exit_code, 0) << result.describe();
  EXPECT_TRUE(contains(result.out,
                       "\nSame results, but cupool served no allocation: the times tell nothing of "
                       "it (3 runs each).\n"))
      << result.out;
}

// What it serves is not of cudaMalloc alone.
TEST(Compare, GivesAVerdictOnAProgramWithPageLockedMemoryAlone) {
  const ProcessResult result =
      cupool({"compare", "-n", "2", "--", preload::probe_path("probe_host_memory"), "case=only",
              "rounds=50"});
  EXPECT_EQ(result.exit_code, 0) << result.describe();
  EXPECT_TRUE(contains(result.out, "\nNo allocation of cudaMalloc: cupool served page-locked"))
      << result.out;
  EXPECT_TRUE(contains(result.out, "\nSame results, and ")) << result.out;
}

// Who fails at once does the same with cupool as without.
TEST(Compare, SaysThatAProgramFailedBothTimes) {
  if (const char* reason = reason_without_shell()) GTEST_SKIP() << reason;
  const ProcessResult failed =
      cupool({"compare", "-n", "2", "--", "sh", "-c", "echo no input >&2; exit 7"});
  EXPECT_EQ(failed.exit_code, 3) << failed.describe();
  EXPECT_TRUE(contains(failed.out, "the program FAILED with exit code 7, without cupool and with"))
      << failed.out;
  EXPECT_TRUE(contains(failed.out, "ends with:\nno input\n")) << failed.out;
  EXPECT_FALSE(contains(failed.out, "no input\n\n")) << failed.out;
  EXPECT_FALSE(contains(failed.out, "Same results")) << failed.out;
  const ProcessResult killed = cupool({"compare", "-n", "2", "--", "sh", "-c", "kill -SEGV $$"});
  EXPECT_EQ(killed.exit_code, 3) << killed.describe();
  EXPECT_TRUE(contains(killed.out, "FAILED with signal 11")) << killed.out;
}

TEST(Compare, ShowsProgressOnATerminal) {
  const std::vector<std::string> words = {tested_command(), "compare", "-n", "1", "--",
                                          "sleep",          "1.2"};
  const std::string shown = run_at_terminal(words, environment()).output;
  EXPECT_TRUE(contains(shown, "run 1 of 2, without cupool\x1b[K")) << shown;
  EXPECT_TRUE(contains(shown, "run 2 of 2, with cupool, 2 s left")) << shown;
  EXPECT_TRUE(contains(shown, "run 2 of 2, with cupool, 1 s left")) << "while it lasts" << shown;
  EXPECT_FALSE(contains(shown, "\nrun ")) << "one line" << shown;
  const std::string dumb = run_at_terminal(words, environment({{"TERM", "dumb"}})).output;
  EXPECT_FALSE(contains(dumb, "run 1 of 2")) << dumb;
}

TEST(Compare, FindsEachKindOfDifference) {
  if (const char* reason = reason_without_shell()) GTEST_SKIP() << reason;
  const ScratchFolder folder;
  const std::string file = folder.path() + "/result";
  const struct {
    const char* script;
    const char* told;
  } rows[] = {{"echo before; echo $with", "line 2\n    without: 0\n    with:    1"},
              {"exit $with", "exit code"},
              {"[ $with = 0 ] || kill -9 $$", "signal 9"},
              {"echo $with > $1", "result"},
              {"[ $with = 0 ] && echo > $1 || rm -f $1", "not there"}};
  for (const auto& row : rows) {
    const std::string script = shell_script(folder, std::string(kWithCupool) + row.script);
    const ProcessResult result = cupool({"compare", "-n", "2", "--file", file, "--", script, file});
    EXPECT_EQ(result.exit_code, 1) << row.script << result.describe();
    EXPECT_TRUE(contains(result.out, "DIFFERENT")) << result.out;
    EXPECT_TRUE(contains(result.out, row.told)) << result.out;
  }
}

TEST(Compare, TellsAProgramThatIsUnsteadyByItself) {
  if (const char* reason = reason_without_shell()) GTEST_SKIP() << reason;
  const ScratchFolder folder;
  const std::string script = shell_script(folder, "echo time=$$; echo steady");
  const ProcessResult result = cupool({"compare", "-n", "2", "--", script});
  EXPECT_EQ(result.exit_code, 3) << result.describe();
  EXPECT_TRUE(contains(result.out, "Inconclusive (2 runs each): standard output")) << result.out;
  EXPECT_TRUE(contains(result.out, "Time: ")) << "the speed is known all the same" << result.out;
  EXPECT_FALSE(contains(result.out, "DIFFER")) << result.out;
  EXPECT_TRUE(contains(result.out, "the same without and with cupool")) << result.out;
  // The proposed command, as it stands.
  const std::size_t begin = result.out.find("cupool compare -n 2 --ignore 'time=[0-9]+' -- ");
  ASSERT_NE(begin, std::string::npos) << result.out;
  const std::string proposed = result.out.substr(begin, result.out.find('\n', begin) - begin);
  preload::Command command;
  command.argv = {"/bin/sh", "-c", tested_command() + proposed.substr(6)};
  command.environment = environment();
  EXPECT_EQ(preload::run(command).exit_code, 0) << proposed;
}

TEST(Compare, RepeatsItsOptionsInTheCommandThatItProposes) {
  if (const char* reason = reason_without_shell()) GTEST_SKIP() << reason;
  const ScratchFolder folder;
  const std::string script = shell_script(folder, "echo $$");
  const ProcessResult result = cupool({"compare", "-n", "2", "--file", "a b", "--ignore", "z",
                                       "--free-mode", "sync", "--", script, "it's"});
  const std::string proposed =
      "cupool compare -n 2 --file 'a b' --ignore z --ignore '^[0-9]+$' "
      "--set CUPOOL_FREE_MODE=sync -- " +
      script + " 'it'\\''s'";
  EXPECT_TRUE(contains(result.out, proposed)) << result.out;
}

TEST(Compare, SaysWhereProgramsDifferByMoreThanNumbers) {
  if (const char* reason = reason_without_shell()) GTEST_SKIP() << reason;
  const ScratchFolder folder;
  const std::string file = folder.path() + "/count";
  const std::string script =
      shell_script(folder, "echo x >> " + file + "; if [ $(($(wc -l < " + file +
                               ") % 3)) -lt 2 ]; then echo a b; else echo b a; fi");
  const ProcessResult result = cupool({"compare", "-n", "4", "--", script});
  EXPECT_EQ(result.exit_code, 3) << result.describe();
  EXPECT_TRUE(contains(result.out, "one run: ")) << result.out;
  EXPECT_TRUE(contains(result.out, "no expression is proposed")) << result.out;
}

TEST(Compare, DoesNotJudgeByOneRun) {
  if (const char* reason = reason_without_shell()) GTEST_SKIP() << reason;
  const ScratchFolder folder;
  for (const char* way : {"echo $with", "exit $with", "echo $$"}) {
    const std::string script = shell_script(folder, std::string(kWithCupool) + way);
    const ProcessResult result = cupool({"compare", "-n", "1", "--", script});
    EXPECT_EQ(result.exit_code, 3) << result.describe();
    EXPECT_TRUE(contains(result.out, "one run cannot tell")) << result.out;
    EXPECT_TRUE(contains(result.out, "To tell: cupool compare -- ")) << result.out;
    EXPECT_FALSE(contains(result.out, "DIFFER")) << result.out;
  }
}

TEST(Compare, GivesTheProgramNoInputAndItsOwnArguments) {
  if (const char* reason = reason_without_shell()) GTEST_SKIP() << reason;
  const ScratchFolder folder;
  const std::string script =
      shell_script(folder, "[ \"$1\" = -n ] && [ -z \"$(cat)\" ] && echo right");
  const ProcessResult result = cupool({"compare", "-n", "1", script, "-n"});
  EXPECT_EQ(result.exit_code, 0) << result.describe();
  EXPECT_TRUE(contains(result.out, "6 bytes")) << result.out;
}

TEST(Compare, TakesAnotherCupoolOutOfTheRunWithout) {
  const ScratchFolder folder;
  const std::string script = shell_script(folder, std::string(kWithCupool) + "exit $with");
  preload::Environment preloaded;
  preload::add_preload(&preloaded);
  const ProcessResult result = cupool({"compare", "-n", "2", "--", script}, preloaded);
  EXPECT_EQ(result.exit_code, 1) << result.describe();
}

TEST(Compare, EndsAsTheProgramThatCannotRun) {
  const ScratchFolder folder;
  EXPECT_EQ(cupool({"compare", "--", folder.path() + "/none"}).exit_code, 127);
  EXPECT_EQ(cupool({"compare", "--", folder.path()}).exit_code, 126);
  EXPECT_EQ(cupool({"compare"}).exit_code, 2);
  EXPECT_EQ(cupool({"compare", "--ignore", "(", "--", "true"}).exit_code, 2);
  EXPECT_EQ(cupool({"compare", "-n", "0", "--", "true"}).exit_code, 2);
  const std::string script = shell_script(folder, "kill -TERM $$");
  EXPECT_EQ(cupool({"compare", "--", script}).signal, SIGTERM);
}

TEST(Compare, LeavesNothingBehind) {
  const ScratchFolder folder;
  cupool({"compare", "-n", "1", "--", preload::probe_path("probe_runtime_shared")},
         {{"TMPDIR", folder.path()}});
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(RunPlan, TellsTheRunAndTheTimeThatIsLeft) {
  constexpr std::uint64_t kSecond = 1'000'000'000;
  cupool::cli::RunPlan plan{{"without cupool", "with cupool"}, {0, 1, 1, 0}, {}};
  EXPECT_EQ(plan.text(0), "run 1 of 4, without cupool");
  EXPECT_EQ(plan.text(30 * kSecond), "run 1 of 4, without cupool, 30 s so far");
  plan.took_ns = {40 * kSecond};
  EXPECT_EQ(plan.text(0), "run 2 of 4, with cupool, 2 min left");
  plan.took_ns = {40 * kSecond, 10 * kSecond};
  EXPECT_EQ(plan.text(0), "run 3 of 4, with cupool, 50 s left");
  EXPECT_EQ(plan.text(4 * kSecond), "run 3 of 4, with cupool, 46 s left");
  EXPECT_EQ(plan.text(60 * kSecond), "run 3 of 4, with cupool, 40 s left") << "longer than before";
  plan.took_ns = {40 * kSecond, 10 * kSecond, 10 * kSecond};
  EXPECT_EQ(plan.text(90 * kSecond), "run 4 of 4, without cupool, 1 s left");
}

TEST(Spread, IsMedianLowestAndHighest) {
  const auto odd = cupool::cli::spread_of({5, 1, 9});
  EXPECT_EQ(odd.median, 5);
  EXPECT_EQ(odd.lowest, 1);
  EXPECT_EQ(odd.highest, 9);
  EXPECT_EQ(cupool::cli::spread_of({4, 2}).median, 3);
}

TEST(ObserveCommand, TellsWhatWasSeenAndKeepsTheReport) {
  const ScratchFolder folder;
  const std::string file = folder.path() + "/seen.json";
  const ProcessResult plain = preload::run_plain("probe_runtime_shared");
  const ProcessResult result =
      cupool({"observe", "--json", file, "--", preload::probe_path("probe_runtime_shared")});
  EXPECT_EQ(result.exit_code, 0) << result.describe();
  EXPECT_EQ(result.out, plain.out) << "standard output is the program's";
  EXPECT_TRUE(contains(result.err, "pooling would save at most")) << result.err;
  EXPECT_TRUE(contains(result.err, "Assumed: ")) << result.err;
  const json report = json::parse(preload::read_file(file));
  EXPECT_EQ(report.at("observe").at("malloc_calls_total"), preload::counts_of(plain.out).mallocs);
}

// As mpirun: two ranks at once. WORLD, if set, claims more.
const char* const kLauncher =
    "for rank in 0 1; do\n"
    "  OMPI_COMM_WORLD_RANK=$rank OMPI_COMM_WORLD_SIZE=${WORLD:-2} \"$@\" > /dev/null &\n"
    "done; wait\n";

TEST(ObserveCommand, GivesOneVerdictFromAllRanks) {
  if (const char* reason = reason_without_shell()) GTEST_SKIP() << reason;
  const ScratchFolder folder;
  const std::string launcher = shell_script(folder, kLauncher);
  const std::string probe = preload::probe_path("probe_runtime_shared");
  const ProcessResult result =
      cupool({"observe", "--json", folder.path() + "/r%r.json", launcher, probe});
  EXPECT_EQ(result.exit_code, 0) << result.describe();
  const std::string verdict = "pooling would save at most";
  EXPECT_EQ(result.err.find(verdict), result.err.rfind(verdict)) << result.err;
  EXPECT_TRUE(contains(result.err, "of 2 processes together, in a run of")) << result.err;
  EXPECT_TRUE(contains(result.err, "160 allocations took")) << result.err;
  EXPECT_FALSE(contains(result.err, "ranks reported")) << result.err;
  EXPECT_LT(result.err.find("  rank 0 on "), result.err.find("  rank 1 on ")) << result.err;
  for (const char* rank : {"0", "1"}) {
    const json report = json::parse(preload::read_file(folder.path() + "/r" + rank + ".json"));
    EXPECT_EQ(report.at("process").at("rank"), rank);
  }
}

TEST(ObserveCommand, KeepsEveryReportOfOneName) {
  if (const char* reason = reason_without_shell()) GTEST_SKIP() << reason;
  const ScratchFolder folder;
  const std::string launcher = shell_script(folder, kLauncher);
  const ProcessResult result = cupool({"observe", "--json", folder.path() + "/seen%z.json",
                                       launcher, preload::probe_path("probe_runtime_shared")});
  EXPECT_TRUE(std::filesystem::exists(folder.path() + "/seen%z.json")) << result.err;
  EXPECT_TRUE(std::filesystem::exists(folder.path() + "/seen%z.1.json")) << result.err;
  EXPECT_TRUE(contains(result.err, "%z means nothing")) << result.err;
}

TEST(ObserveCommand, SaysHowManyRanksItDidNotSee) {
  if (const char* reason = reason_without_shell()) GTEST_SKIP() << reason;
  const ScratchFolder folder;
  const std::string launcher = shell_script(folder, kLauncher);
  const std::string probe = preload::probe_path("probe_runtime_shared");
  const std::string told = "Only 2 of 8 ranks reported.";
  const ProcessResult seen = cupool({"observe", launcher, probe}, {{"WORLD", "8"}});
  EXPECT_TRUE(contains(seen.err, told)) << seen.err;
  const ProcessResult compared = cupool({"compare", "-n", "1", launcher, probe}, {{"WORLD", "8"}});
  EXPECT_TRUE(contains(compared.out, told)) << compared.out;
  EXPECT_TRUE(contains(compared.out, "of one of 2 processes on one device")) << compared.out;
  EXPECT_TRUE(contains(compared.out, "2 processes used the GPU in each run")) << compared.out;
  // A launcher that starts the command itself: each sees its own rank.
  const ProcessResult own =
      cupool({"observe", probe}, {{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "8"}});
  EXPECT_FALSE(contains(own.err, "ranks reported")) << own.err;
}

TEST(ObserveCommand, HandsOnTheEndAndSaysWhenThereWasNothing) {
  const ProcessResult nothing = cupool({"observe", "--", "sh", "-c", "exit 5"});
  EXPECT_EQ(nothing.exit_code, 5);
  EXPECT_TRUE(contains(nothing.err, "nothing observed")) << nothing.err;
  EXPECT_EQ(cupool({"observe", "--", "sh", "-c", "kill -9 $$"}).signal, SIGKILL);
  EXPECT_EQ(cupool({"observe", "--", "/no/such/program"}).exit_code, 127);
  // A program that fails may have ended before its work.
  const ProcessResult failed =
      cupool({"observe", preload::probe_path("probe_words"), "loop=100", "exit=5"});
  EXPECT_EQ(failed.exit_code, 5) << failed.describe();
  EXPECT_TRUE(contains(failed.err, "the program FAILED with exit code 5: it may have ended before"))
      << failed.err;
}

std::string value_of(const Tuning& tuning, const std::string& name) {
  for (const auto& setting : tuning.settings) {
    if (setting.name == name) return setting.value;
  }
  return "";
}

TEST(Tune, SizesThePoolByThePeak) {
  const Tuning tuning = tune({parsed(example_report())});  // 100 MiB reserved
  EXPECT_EQ(value_of(tuning, "CUPOOL_PREALLOC"), "128M");
  EXPECT_EQ(value_of(tuning, "CUPOOL_RELEASE_THRESHOLD"), "128M");
  EXPECT_EQ(value_of(tuning, "CUPOOL_MAX_PENDING"), "");
}

TEST(Tune, RaisesThePendingLimitWhereFreesWaitedForIt) {
  json report = example_report();
  report["devices"][0]["counters"]["free_waits_pending_limit_total"] = 7;
  EXPECT_EQ(value_of(tune({parsed(report)}), "CUPOOL_MAX_PENDING"), "64M");  // 20 MiB retired
  report["devices"][0]["gauges"]["retired_bytes"]["peak"] = 1ll << 32;
  EXPECT_EQ(value_of(tune({parsed(report)}), "CUPOOL_MAX_PENDING"), "")
      << "no more than an eighth of the device";
  report["devices"][0]["gauges"]["retired_bytes"]["peak"] = 20 << 20;
  report["settings"].push_back({{"name", "CUPOOL_MAX_PENDING"},
                                {"value", "auto"},
                                {"origin", "default"},
                                {"is_default", true}});
  report["devices"][0]["gauges"]["pending_limit_bytes"] = {{"current", 8 << 20}, {"peak", 8 << 20}};
  EXPECT_EQ(value_of(tune({parsed(report)}), "CUPOOL_MAX_PENDING"), "") << "it grows by itself";
}

TEST(Tune, ReservesNothingWhereTheDeviceIsNearlyFull) {
  json report = example_report();
  report["devices"][0]["pool"]["reserved_high_bytes"] = 4000000000u;
  EXPECT_EQ(value_of(tune({parsed(report)}), "CUPOOL_PREALLOC"), "");
  // Five processes that share a device, each with a quarter of it.
  report["devices"][0]["pool"]["reserved_high_bytes"] = 1u << 30;
  const Report one = parsed(report);
  EXPECT_NE(value_of(tune({one}), "CUPOOL_PREALLOC"), "");
  EXPECT_EQ(value_of(tune({one, one, one, one, one}), "CUPOOL_PREALLOC"), "");
}

TEST(Tune, SaysWhatTheOrderOfStreamsCosts) {
  json report = example_report();
  const std::size_t others = tune({parsed(report)}).remarks.size();
  report["devices"][0]["counters"]["stream_waits_total"] = 1200;
  const Tuning tuning = tune({parsed(report)});
  ASSERT_EQ(tuning.remarks.size(), others + 1);
  const auto about_order = [](const std::string& remark) {
    return contains(remark, "compare --free-mode ordered");
  };
  EXPECT_EQ(std::count_if(tuning.remarks.begin(), tuning.remarks.end(), about_order), 1);
}

TEST(Tune, WritesAProfileThatTheLibraryTakes) {
  const ScratchFolder folder;
  json report = example_report();
  report["devices"][0]["counters"]["free_waits_pending_limit_total"] = 7;
  report["process"]["program_path"] = "/opt/a\nCUPOOL_ENABLE=0";
  const std::string file = write_report(folder.path(), "r.json", report);
  const std::string profile = folder.path() + "/tuned.env";
  const ProcessResult result = cupool({"tune", file, "-o", profile});
  EXPECT_EQ(result.exit_code, 0) << result.describe();
  const std::string entry = "CUPOOL_PROFILE=" + profile;
  const char* const variables[] = {entry.c_str(), nullptr};
  std::vector<std::string> warnings;
  const auto settings = cupool::config::parse(variables, &warnings, nullptr);
  EXPECT_TRUE(warnings.empty()) << warnings.front();
  EXPECT_EQ(settings.prealloc.size.value, 128u << 20);
  EXPECT_EQ(settings.release_threshold.value, 128u << 20);
  EXPECT_EQ(settings.max_pending.most.value, 64u << 20);
  EXPECT_TRUE(settings.enable) << "a program's name is no setting";
  EXPECT_EQ(cupool({"tune", file}).out, preload::read_file(profile));
}

TEST(Tune, RunsAndDecides) {
  const ScratchFolder folder;
  const std::string profile = folder.path() + "/tuned.env";
  const ProcessResult result =
      cupool({"tune", "-n", "2", "-o", profile, "--", preload::probe_path("probe_runtime_shared")});
  EXPECT_TRUE(contains(result.out, "CUPOOL_PREALLOC=")) << result.describe();
  EXPECT_TRUE(contains(result.out, "before")) << result.out;
  const bool kept = contains(result.out, "keep them");
  EXPECT_EQ(result.exit_code, kept ? 0 : 1) << result.describe();
  EXPECT_EQ(std::filesystem::exists(profile), kept);
}

// A file that can be executed is a program, a report is not, even where every file may be executed.
TEST(Tune, TakesAProgramWithoutDashes) {
  if (const char* reason = reason_without_shell()) GTEST_SKIP() << reason;
  const ScratchFolder folder;
  const std::string script = shell_script(folder, "exit ${1#--code=}");
  EXPECT_EQ(cupool({"tune", "-n", "1", script, "--code=4"}).exit_code, 4);
  EXPECT_EQ(cupool({"tune", "sh", "-c", "exit 6"}).exit_code, 6) << "by PATH";
  for (const char* name : {"r.json", "report"}) {
    const std::string report = write_report(folder.path(), name, example_report());
    std::filesystem::permissions(report, std::filesystem::perms::owner_all);
    const ProcessResult result = cupool({"tune", report});
    EXPECT_EQ(result.exit_code, 0) << result.describe();
    EXPECT_TRUE(contains(result.out, "CUPOOL_PREALLOC=")) << result.out;
  }
  std::filesystem::create_directory(folder.path() + "/d");
  write_report(folder.path() + "/d", "r.json", example_report());
  EXPECT_EQ(cupool({"tune", folder.path() + "/d"}).exit_code, 0);
  EXPECT_EQ(cupool({"tune", folder.path() + "/r.json", script}).exit_code, 2) << "both";
}

TEST(Tune, SaysBeforeTheRunsThatItsFileCannotBeWritten) {
  const ScratchFolder folder;
  const std::string mark = folder.path() + "/ran";
  const ProcessResult result =
      cupool({"tune", "-o", folder.path() + "/none/t.env", "--", "touch", mark});
  EXPECT_EQ(result.exit_code, 2) << result.describe();
  EXPECT_TRUE(contains(result.err, "No such file or directory. Create the folder first"))
      << result.err;
  EXPECT_FALSE(std::filesystem::exists(mark));
  const ProcessResult observed = cupool({"observe", "--json", folder.path(), "--", "touch", mark});
  EXPECT_EQ(observed.exit_code, 2) << observed.describe();
  EXPECT_TRUE(contains(observed.err, "Is a directory. Name another file")) << observed.err;
  EXPECT_FALSE(std::filesystem::exists(mark));
}

TEST(Tune, RefusesWhatItCannotUse) {
  const ScratchFolder folder;
  json observed = example_report();
  observed["observe"] = {{"verdict", "x"}};
  EXPECT_EQ(cupool({"tune"}).exit_code, 2);
  EXPECT_EQ(cupool({"tune", folder.path() + "/none.json"}).exit_code, 2);
  const ProcessResult result = cupool({"tune", write_report(folder.path(), "o.json", observed)});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_TRUE(contains(result.err, "observed run")) << result.err;
  EXPECT_EQ(cupool({"tune", "--", "sh", "-c", "exit 4"}).exit_code, 4);
  EXPECT_EQ(cupool({"tune", "--", "true"}).exit_code, 1);
}

}  // namespace
}  // namespace cli
