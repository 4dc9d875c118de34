// SPDX-License-Identifier: Apache-2.0
// `cupool run`: the program is started as a shell would start it, with the library first, and ends
// the command as it ended itself.
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "cli/shell/exit_code.h"
#include "cli/shell/group_witness.h"
#include "cli/shell/library.h"
#include "cli/shell/options_text.h"
#include "command.h"
#include "config/settings.h"
#include "patched_file.h"
#include "pseudo_terminal.h"

namespace cli {
namespace {

using preload::Environment;
using preload::ProcessResult;
using preload::ScratchFolder;

void write_file(const std::string& path, const std::string& content, bool executable) {
  std::ofstream(path) << content;
  std::filesystem::permissions(
      path, executable ? std::filesystem::perms::owner_all : std::filesystem::perms::owner_read);
}

TEST(Run, ServesAProgramOfEachRouteFromThePools) {
  for (const char* probe : {"probe_runtime_shared", "probe_runtime_static", "probe_driver_linked",
                            "probe_dlsym", "probe_getproc"}) {
    SCOPED_TRACE(probe);
    const ScratchFolder folder;
    const std::string report = folder.path() + "/report.json";
    const ProcessResult plain = preload::run_plain(probe);
    const ProcessResult result =
        cupool({"run", "--stats", "json", "--stats-file", report, preload::probe_path(probe)});
    EXPECT_EQ(result.exit_code, 0) << result.describe();
    EXPECT_EQ(result.out, plain.out);
    EXPECT_EQ(result.err, plain.err);
    const nlohmann::json answer = nlohmann::json::parse(preload::read_file(report), nullptr, false);
    ASSERT_TRUE(answer.is_object()) << result.describe();
    EXPECT_GT(answer.at("devices").at(0).at("counters").at("malloc_calls_total"), 0);
  }
}

TEST(Run, TakesTheProgramsWordsAsTheyAre) {
  const std::vector<std::string> words = {
      "/usr/bin/printf", "<%s>", "--set", "a b", "--", "-x", ""};
  for (const bool dashes : {false, true}) {
    std::vector<std::string> arguments = {"run", "--enable=0"};
    if (dashes) arguments.push_back("--");
    arguments.insert(arguments.end(), words.begin(), words.end());
    const ProcessResult result = cupool(arguments);
    EXPECT_EQ(result.out, "<--set><a b><--><-x><>") << result.describe();
  }
}

TEST(Run, PutsTheLibraryBeforeOtherPreloads) {
  const std::string other = std::string(CUPOOL_TEST_SIM_FOLDER) + "/libcudart.so.13";
  const std::string library = tested_library();
  const std::string runtime = CUPOOL_TEST_SANITIZER_RUNTIME;
  const std::string before = runtime.empty() ? "" : runtime + ":";
  for (const std::string& present : {other, library + " " + other, other + ":/old/libcupool.so"}) {
    const ProcessResult result =
        cupool({"run", "--print", "true"}, {{"LD_PRELOAD", before + present}});
    EXPECT_EQ(result.out, "LD_PRELOAD=" + before + library + ":" + other + " true\n")
        << present << "\n"
        << result.describe();
  }
}

TEST(Run, KeepsASanitizersRuntimeInFront) {
  using cupool::cli::preload_value;
  EXPECT_EQ(preload_value("/x/libcupool.so", ""), "/x/libcupool.so");
  EXPECT_EQ(preload_value("/x/libcupool.so", "/gcc/libasan.so.8 /other.so"),
            "/gcc/libasan.so.8:/x/libcupool.so:/other.so");
  EXPECT_EQ(preload_value("/x/libcupool.so", "::/other.so:/gcc/libtsan.so"),
            "/x/libcupool.so:/other.so:/gcc/libtsan.so");
}

TEST(Run, LinksALibraryWhosePathTheLoaderWouldSplit) {
  const ScratchFolder folder;
  for (const char* name : {"a blank", "a:colon"}) {
    const std::string place = folder.path() + "/" + name;
    std::filesystem::create_directory(place);
    std::filesystem::copy_file(tested_library(), place + "/libcupool.so");
    const Environment there = {{"CUPOOL_LIBRARY", place + "/libcupool.so"},
                               {"XDG_RUNTIME_DIR", folder.path()}};
    const std::string probe = preload::probe_path("probe_runtime_shared");
    for (int i = 0; i < 2; ++i) {
      const ProcessResult result = cupool({"run", "--stats", "json", probe}, there);
      EXPECT_EQ(result.exit_code, 0) << result.describe();
      EXPECT_NE(result.err.find("\"schema_version\""), std::string::npos) << result.describe();
    }
  }
  // A folder that others could change is not used, nor is a link in place of it.
  const std::string open = folder.path() + "/open";
  std::filesystem::create_directory(open);
  std::filesystem::create_directory(open + "/cupool-" + std::to_string(geteuid()));
  chmod((open + "/cupool-" + std::to_string(geteuid())).c_str(), 0777);
  const ProcessResult printed = cupool(
      {"run", "--print", "true"},
      {{"CUPOOL_LIBRARY", folder.path() + "/a blank/libcupool.so"}, {"XDG_RUNTIME_DIR", open}});
  EXPECT_EQ(printed.out.find(open), std::string::npos) << printed.describe();
}

TEST(Run, AProgramWhoseLoaderRefusesTheLibraryRunsWithoutIt) {
  const ScratchFolder folder;
  const std::string copy = folder.path() + "/libcupool.so";
  // As if made for a newer libc.
  copy_changed(tested_library(), copy,
               [](std::string* bytes) { replace_bytes(bytes, "libc.so.6", "libc.so.9"); });
  const ProcessResult result =
      cupool({"run", preload::probe_path("probe_runtime_shared")}, {{"CUPOOL_LIBRARY", copy}});
  EXPECT_EQ(result.exit_code, 0) << result.describe();
  EXPECT_NE(result.out.find("wrong_bytes=0"), std::string::npos) << result.describe();
  EXPECT_NE(result.err.find("runs without cupool"), std::string::npos) << result.describe();
  EXPECT_NE(result.err.find("libc.so.9"), std::string::npos) << result.describe();
  const std::string musl = folder.path() + "/musl";  // its loader is not there
  copy_changed(preload::probe_path("probe_runtime_shared"), musl, [](std::string* bytes) {
    replace_bytes(bytes, "/lib64/ld-linux-x86-64.so.2", "/lib/ld-musl-x86_64.so.1");
  });
  const ProcessResult other = cupool({"run", musl});
  EXPECT_NE(other.err.find(musl + " uses musl, cupool needs glibc"), std::string::npos)
      << other.describe();
}

TEST(Run, SetsOptionsByNameByVariableAndByProfile) {
  const ProcessResult result = cupool({"run", "--free-mode", "sync", "--max-pending=5%", "--set",
                                       "CUPOOL_IPC=0", "--profile", "mpi", "/usr/bin/env"});
  EXPECT_EQ(result.exit_code, 0) << result.describe();
  EXPECT_NE(result.out.find("CUPOOL_FREE_MODE=sync\n"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("CUPOOL_MAX_PENDING=5%\n"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("CUPOOL_IPC=0\n"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("/mpi.env\n"), std::string::npos) << result.out;
}

TEST(Run, RefusesSettingsThatTheLibraryWouldNotTake) {
  const struct {
    std::vector<std::string> arguments;
    const char* says;
  } cases[] = {
      {{"--free-mode", "sometimes"},
       "cupool: CUPOOL_FREE_MODE=\"sometimes\" is not understood: it takes auto, ordered or "
       "sync\n"},
      {{"--set", "CUPOOL_FREEMODE=sync"}, "Did you mean CUPOOL_FREE_MODE?"},
      {{"--set", "FREE_MODE=sync"}, "Did you mean CUPOOL_FREE_MODE=sync?"},
      {{"--set", "free_mod=sync"}, "Did you mean CUPOOL_FREE_MODE?"},
      {{"--set", "CUPOOL_FREE_MODE"},
       "--set takes CUPOOL_NAME=VALUE, not CUPOOL_FREE_MODE: a value"},
      {{"--set", "FOO=1"}, "--set takes CUPOOL_NAME=VALUE, not FOO=1. cupool options lists"},
      {{"--free-mod", "sync"}, "cupool run has no option --free-mod. Did you mean --free-mode?"},
      {{"--ipc", "0", "--set", "CUPOOL_IPC=1"}, "CUPOOL_IPC is given twice"},
      {{"--profile", "mpu"}, "Did you mean mpi?"},
      {{"--max-size", ""}, "is empty"},
  };
  for (const auto& wrong : cases) {
    SCOPED_TRACE(wrong.says);
    std::vector<std::string> arguments = {"run"};
    arguments.insert(arguments.end(), wrong.arguments.begin(), wrong.arguments.end());
    arguments.push_back("/bin/echo");
    const ProcessResult result = cupool(arguments);
    EXPECT_EQ(result.exit_code, 2) << result.describe();
    EXPECT_EQ(result.out, "");
    EXPECT_NE(result.err.find(wrong.says), std::string::npos) << result.err;
  }
}

// At the end of a long run it would be too late. But the program may make the folder.
TEST(Run, WarnsOfAFileThatCannotBeWritten) {
  const ScratchFolder folder;
  for (const char* option : {"--stats-file", "--trace"}) {
    const std::string file = folder.path() + "/none/x";
    const ProcessResult result = cupool({"run", option, file, "--", "/bin/echo", "ran"});
    EXPECT_EQ(result.exit_code, 0) << result.describe();
    EXPECT_EQ(result.out, "ran\n");
    EXPECT_EQ(result.err, "cupool: so far, cannot write " + file +
                              ": No such file or directory. Create the folder first, or name "
                              "another file\n");
    for (const std::string& later : {folder.path() + "/x", folder.path() + "/%p/x"}) {
      const ProcessResult fine = cupool({"run", option, later, "--", "/bin/echo", "ran"});
      EXPECT_EQ(fine.out + fine.err, "ran\n") << later;
    }
    const std::string program = folder.path() + "/program";
    std::ofstream(program) << "#!/bin/sh\n";
    std::filesystem::permissions(program, std::filesystem::perms::owner_all);
    const ProcessResult refused = cupool({"run", option, program, "--", "/bin/echo", "ran"});
    EXPECT_EQ(refused.exit_code, 2) << refused.describe();
    EXPECT_TRUE(contains(refused.err, program + " is a program and would be overwritten"))
        << refused.err;
  }
}

// A value that each option takes and that has an effect; beside it what it needs.
TEST(Run, TakesEveryOptionAsAFlag) {
  const std::map<std::string, std::vector<std::string>> values = {
      {"CUPOOL_SITES", {"1", "--stats", "json"}},
      {"CUPOOL_LEAKS", {"1", "--stats", "csv,json"}},
      {"CUPOOL_STATS_FILE", {"report.json"}},
      {"CUPOOL_TRACE", {"trace.csv"}},
      {"CUPOOL_LOG_FILE", {"log"}},
      {"CUPOOL_PROFILE", {"mpi"}}};
  for (const cupool::config::Row& row : cupool::config::rows()) {
    SCOPED_TRACE(row.name);
    const auto found = values.find(row.name);
    std::vector<std::string> given =
        found != values.end() ? found->second : std::vector<std::string>{row.default_text};
    if (given[0].empty()) continue;  // a name of libraries, an empty list of which is refused
    given.insert(given.begin(), cupool::cli::flag_of(row));
    for (const char* command : {"run", "env"}) {
      std::vector<std::string> arguments = {command};
      arguments.insert(arguments.end(), given.begin(), given.end());
      if (arguments[0] == "run") arguments.insert(arguments.end(), {"--print", "/bin/true"});
      const ProcessResult result = cupool(arguments);
      EXPECT_EQ(result.exit_code, 0) << result.describe();
      EXPECT_NE(result.out.find(row.name), std::string::npos) << result.out;
    }
  }
}

// What a setting needs may stand anywhere, and is looked for everywhere.
TEST(Run, JudgesSettingsTogetherWithTheEnvironment) {
  const std::string probe = preload::probe_path("probe_words");
  const ProcessResult by_variable =
      cupool({"run", "--sites", "1", "/bin/true"}, {{"CUPOOL_STATS", "json"}});
  EXPECT_EQ(by_variable.exit_code, 0) << by_variable.describe();
  EXPECT_EQ(cupool({"compare", "-n", "1", "--sites", "1", probe, "loop=5"}).exit_code, 0);
  EXPECT_EQ(
      cupool({"run", "--leaks", "1", "--print", "/bin/true"}, {{"CUPOOL_SITES", "1"}}).exit_code, 0)
      << "what the environment lacks is not the argument's";
  const struct {
    std::vector<std::string> arguments;
    Environment environment;
    const char* says;
  } refused[] = {
      {{"run", "--sites", "1"}, {}, "CUPOOL_SITES lists nothing"},
      {{"run", "--leaks", "1", "--stats", "csv"}, {}, "CUPOOL_LEAKS lists nothing"},
      {{"run", "--leaks", "1"}, {{"CUPOOL_STATS", "csv"}}, "CUPOOL_LEAKS lists nothing"},
      {{"run", "--stats", "csv"}, {{"CUPOOL_LEAKS", "1"}}, "CUPOOL_LEAKS lists nothing"},
      {{"observe", "--sites", "1"}, {}, "leave it out"},
  };
  for (const auto& wrong : refused) {
    std::vector<std::string> arguments = wrong.arguments;
    arguments.push_back("/bin/true");
    const ProcessResult result = cupool(arguments, wrong.environment);
    EXPECT_EQ(result.exit_code, 2) << result.describe();
    EXPECT_NE(result.err.find(wrong.says), std::string::npos) << result.err;
  }
}

TEST(Run, ChecksTheLinesOfAProfile) {
  const ScratchFolder folder;
  const std::string profile = folder.path() + "/own.env";
  write_file(profile, "CUPOOL_FREE_MODE=sometimes\n", false);
  const ProcessResult result = cupool({"run", "--profile", profile, "/bin/true"});
  EXPECT_EQ(result.exit_code, 2) << result.describe();
  EXPECT_NE(result.err.find(profile + ": CUPOOL_FREE_MODE=\"sometimes\" is not understood"),
            std::string::npos)
      << result.err;
}

TEST(Run, HandsOnTheExitCode) {
  for (const int code : {0, 1, 7, 126, 255}) {
    const std::string number = std::to_string(code);
    const ProcessResult piped = cupool({"run", program("cli_signal_program"), "exit", number});
    EXPECT_EQ(piped.exit_code, code) << piped.describe();
    const TerminalRun shown = run_at_terminal(
        {tested_command(), "run", program("cli_signal_program"), "exit", number}, environment());
    EXPECT_TRUE(WIFEXITED(shown.status));
    EXPECT_EQ(WEXITSTATUS(shown.status), code) << shown.output;
  }
}

TEST(Run, DiesOfTheSignalThatEndedTheProgram) {
  for (const int signal : {SIGTERM, SIGABRT, SIGSEGV, SIGKILL}) {
    const std::string number = std::to_string(signal);
    const ProcessResult piped = cupool({"run", program("cli_signal_program"), "die", number});
    EXPECT_EQ(piped.signal, signal) << piped.describe();
    const TerminalRun shown = run_at_terminal(
        {tested_command(), "run", program("cli_signal_program"), "die", number}, environment());
    EXPECT_TRUE(WIFSIGNALED(shown.status)) << shown.output;
    EXPECT_EQ(WTERMSIG(shown.status), signal);
    EXPECT_NE(shown.output.find("signal " + number + " ended the program"), std::string::npos)
        << shown.output;
  }
  // Who pressed Ctrl-C knows what ended it.
  const TerminalRun interrupted = run_at_terminal(
      {tested_command(), "run", program("cli_signal_program"), "die", std::to_string(SIGINT)},
      environment());
  EXPECT_EQ(WTERMSIG(interrupted.status), SIGINT);
  EXPECT_EQ(interrupted.output, "");
}

TEST(Run, ForwardsSignalsToTheProgram) {
  int sent = 0;
  const TerminalRun run =
      run_at_terminal({tested_command(), "run", program("cli_signal_program"), "wait"},
                      environment(), [&sent](const std::string& output, int pid, int) {
                        if (sent == 0 && output.find("ready\n") != std::string::npos) {
                          ++sent;
                          kill(pid, SIGUSR1);
                        } else if (sent == 1 && output.find("USR1\n") != std::string::npos) {
                          ++sent;
                          kill(pid, SIGTERM);
                        }
                      });
  EXPECT_EQ(run.output.substr(0, 16), "ready\nUSR1\nTERM\n") << run.output;
  EXPECT_TRUE(WIFEXITED(run.status));
  EXPECT_EQ(WEXITSTATUS(run.status), 7);
}

TEST(Run, DeliversTheTerminalsInterruptOnce) {
  int typed = 0;
  const TerminalRun run =
      run_at_terminal({tested_command(), "run", program("cli_signal_program"), "wait"},
                      environment(), [&typed](const std::string& output, int pid, int terminal) {
                        if (typed == 0 && output.find("ready\n") != std::string::npos) {
                          ++typed;
                          EXPECT_EQ(write(terminal, "\x03", 1), 1);  // Ctrl-C
                        } else if (typed == 1 && output.find("INT\n") != std::string::npos) {
                          ++typed;
                          kill(pid, SIGHUP);
                        }
                      });
  // A second INT, handed on by the command, would be there instead of HUP.
  EXPECT_NE(run.output.find("INT\nHUP\n"), std::string::npos) << run.output;
}

// What the program shows while something else sends it signals; when it has shown the first, SIGHUP
// goes to the process that was started.
std::string shown_at_signals(const std::vector<std::string>& argv) {
  bool hung_up = false;
  const TerminalRun run =
      run_at_terminal(argv, environment(), [&hung_up](const std::string& output, int pid, int) {
        if (hung_up || output.find("TERM\n") == std::string::npos) return;
        hung_up = true;
        // A second TERM on its way would come first.
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        kill(pid, SIGHUP);
      });
  EXPECT_TRUE(hung_up) << run.output;
  return run.output.substr(0, run.output.find("HUP\n") + 4);
}

// timeout signals the process that it started and then the group: both it and the program.
TEST(Run, DeliversTheSignalOfTimeoutOnce) {
  EXPECT_EQ(shown_at_signals({"/usr/bin/timeout", "3", tested_command(), "run",
                              program("cli_signal_program"), "wait"}),
            "ready\nTERM\nHUP\n");
}

TEST(Run, DeliversASignalToItsGroupOnce) {
  bool sent = false;
  const TerminalRun run =
      run_at_terminal({tested_command(), "run", program("cli_signal_program"), "wait"},
                      environment(), [&sent](const std::string& output, int pid, int) {
                        if (sent || output.find("ready\n") == std::string::npos) return;
                        sent = true;
                        kill(-pid, SIGTERM);
                        std::this_thread::sleep_for(std::chrono::milliseconds(200));
                        kill(pid, SIGUSR1);
                      });
  EXPECT_EQ(run.output.substr(0, 16), "ready\nTERM\nUSR1\n") << run.output;
}

// Whoever signals all processes that are called like the command means the program too.
TEST(Run, HandsOnASignalToAllOfItsName) {
  bool sent = false;
  std::size_t named = 0;
  const TerminalRun run = run_at_terminal(
      {tested_command(), "run", program("cli_signal_program"), "wait"}, environment(),
      [&](const std::string& output, int pid, int) {
        if (sent || output.find("ready\n") == std::string::npos) return;
        sent = true;
        for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
          const int process = std::atoi(entry.path().filename().c_str());
          if (process <= 0 || getpgid(process) != pid) continue;
          const std::string words = preload::read_file(entry.path().string() + "/cmdline");
          if (words.compare(0, tested_command().size(), tested_command()) != 0) continue;
          ++named;
          kill(process, SIGTERM);
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        kill(pid, SIGUSR1);
      });
  EXPECT_EQ(named, 1u);
  EXPECT_EQ(run.output.substr(0, 16), "ready\nTERM\nUSR1\n") << run.output;
}

TEST(HeldSignals, AreDroppedWhereTheGroupGotThem) {
  using cupool::cli::HeldSignals;
  constexpr std::uint64_t hold = HeldSignals::kHoldNs;
  HeldSignals held;
  EXPECT_EQ(held.wait_ms(0), -1);
  held.arrived(SIGTERM, 7, 0);
  held.arrived(SIGTERM, 8, 1);
  held.arrived(SIGUSR1, 7, 2);
  held.seen_by_group(SIGTERM, 7, 3);
  held.arrived(SIGTERM, 7, 4);
  EXPECT_TRUE(held.due(hold).empty());
  EXPECT_EQ(held.due(hold + 2), (std::vector<int>{SIGTERM, SIGUSR1}));
  EXPECT_EQ(held.wait_ms(hold + 2), -1);
  held.arrived(SIGTERM, 7, hold + 3);  // what the group saw is long past
  EXPECT_EQ(held.wait_ms(hold + 3), static_cast<int>(hold / 1'000'000 + 1));
  EXPECT_EQ(held.due(2 * hold + 3), std::vector<int>{SIGTERM});
}

TEST(Run, GivesTheShellsCodesForWhatCannotBeStarted) {
  const ScratchFolder folder;
  write_file(folder.path() + "/plain", "no program", false);
  write_file(folder.path() + "/broken", "#!/no/such/interpreter\n", true);
  EXPECT_EQ(cupool({"run", "no-such-program"}).exit_code, 127);
  EXPECT_EQ(cupool({"run", folder.path() + "/absent"}).exit_code, 127);
  EXPECT_EQ(cupool({"run", folder.path() + "/plain/below"}).exit_code, 127);
  EXPECT_EQ(cupool({"run", folder.path() + "/plain"}).exit_code, 126);
  EXPECT_EQ(cupool({"run", folder.path()}).exit_code, 126);
  EXPECT_EQ(cupool({"run", folder.path() + "/broken"}).exit_code, 127);
  const ProcessResult result = cupool({"run", "no-such-program"});
  EXPECT_EQ(result.err, "cupool: no-such-program: not found in PATH\n");
  const TerminalRun shown =
      run_at_terminal({tested_command(), "run", folder.path() + "/broken"}, environment());
  EXPECT_EQ(WEXITSTATUS(shown.status), 127) << shown.output;
}

TEST(Run, RunsAScriptWithoutAFirstLineByTheShell) {
  const ScratchFolder folder;
  write_file(folder.path() + "/script", "echo \"script $1\"\n", true);
  const ProcessResult result = cupool({"run", "script", "word"}, {{"PATH", folder.path()}});
  EXPECT_EQ(result.out, "script word\n") << result.describe();
}

TEST(Run, SaysNothingInAPipeAndTheNextCommandAtATerminal) {
  const std::string probe = preload::probe_path("probe_runtime_shared");
  const ProcessResult piped = cupool({"run", "--stats", "off", probe});
  EXPECT_EQ(piped.err.find("cupool"), std::string::npos) << piped.err;
  const TerminalRun shown =
      run_at_terminal({tested_command(), "run", "--stats", "off", probe}, environment());
  EXPECT_NE(shown.output.find("cupool run --stats json"), std::string::npos) << shown.output;
}

TEST(Run, NeedsAProgram) {
  const ProcessResult result = cupool({"run", "--free-mode", "sync"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("run needs a program"), std::string::npos) << result.err;
}

TEST(Run, SaysWhereItLookedForTheLibrary) {
  const ScratchFolder folder;
  const std::string copy = folder.path() + "/cupool";
  std::filesystem::copy_file(tested_command(), copy);
  preload::Command command;
  command.argv = {copy, "run", "true"};
  command.environment = environment();
  const ProcessResult result = preload::run(command);
  EXPECT_EQ(result.exit_code, 2) << result.describe();
  EXPECT_NE(result.err.find(folder.path() + "/libcupool.so"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("CUPOOL_LIBRARY"), std::string::npos) << result.err;
  command.environment["CUPOOL_LIBRARY"] = tested_library();
  command.argv = {copy, "run", "/usr/bin/env"};
  const ProcessResult named = preload::run(command);
  EXPECT_EQ(named.exit_code, 0) << named.describe();
  // The library does not know this one, and would warn of it.
  EXPECT_EQ(named.out.find("CUPOOL_LIBRARY="), std::string::npos) << named.out;
  EXPECT_NE(named.out.find(std::string("LD_PRELOAD=") + environment()["LD_PRELOAD"] +
                           (environment()["LD_PRELOAD"].empty() ? "" : ":") + tested_library()),
            std::string::npos)
      << named.out;
}

}  // namespace
}  // namespace cli
