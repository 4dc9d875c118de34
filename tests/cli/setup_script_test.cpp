// SPDX-License-Identifier: Apache-2.0
// scripts/setup.sh: what demo.sh and test.sh install is said before it is installed, and what they
// compile is counted at a terminal. No package is installed here: apt-get is a stand-in.
#include <filesystem>
#include <fstream>

#include "command.h"
#include "pseudo_terminal.h"

namespace cli {
namespace {

using preload::contains;
using preload::ProcessResult;
using preload::ScratchFolder;

// A shell that has read the script, with stand-ins that would install.
preload::Command with_setup(const ScratchFolder& folder, const std::string& words) {
  for (const char* name : {"apt-get", "sudo"}) {
    const std::string path = folder.path() + "/" + name;
    std::ofstream(path) << "#!/bin/sh\necho \"installed $*\" >&2\n";
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  }
  preload::Command command;
  command.argv = {
      "/bin/bash", "-c",
      "set -euo pipefail; source " CUPOOL_TEST_SOURCE_FOLDER "/scripts/setup.sh\n" + words};
  command.environment = preload::base_environment();
  command.environment["PATH"] = folder.path() + ":/usr/local/bin:/usr/bin:/bin";
  return command;
}

TEST(SetupScript, SaysWhatItInstallsBeforeItDoes) {
  const ScratchFolder folder;
  const std::string pair = "no-such-package=/no/such/file";
  const ProcessResult result =
      preload::run(with_setup(folder, "announce " + pair +
                                          " -- 'a compiler into build/x'\n"
                                          "echo announced >&2\nsetup_packages " +
                                          pair));
  EXPECT_EQ(result.exit_code, 0) << result.describe();
  EXPECT_TRUE(contains(result.out, "is installed first")) << result.out;
  const std::size_t said = result.out.find("  by apt-get, ");
  ASSERT_NE(said, std::string::npos) << result.out;
  EXPECT_NE(result.out.find("no-such-package", said), std::string::npos) << result.out;
  EXPECT_TRUE(contains(result.out, "  a compiler into build/x\n")) << result.out;
  EXPECT_LT(result.err.find("announced"), result.err.find("installed ")) << result.err;
  EXPECT_TRUE(contains(result.err, "no-such-package")) << result.err;
}

TEST(SetupScript, SaysThatThereIsNothingToInstall) {
  const ScratchFolder folder;
  const ProcessResult result =
      preload::run(with_setup(folder, "base_packages=(sh=sh)\nfind_toolkit() { true; }\nannounce"));
  EXPECT_EQ(result.exit_code, 0) << result.describe();
  if (!std::filesystem::exists("/usr/include/CLI/CLI.hpp")) GTEST_SKIP() << "no CLI11 here";
  EXPECT_TRUE(contains(result.out, "nothing to install")) << result.out;
  EXPECT_EQ(result.err, "");
}

TEST(SetupScript, CountsWhatIsCompiledAtATerminalOnly) {
  const ScratchFolder folder;
  const std::string words =
      "printf '[1/20] CXX a\\n  warning\\n[20/20] CXX b\\n' | show_count compiling\n"
      "printf '  7/90 Test #7: x ... Passed\\n' | show_count testing\necho done";
  const preload::Command command = with_setup(folder, words);
  EXPECT_EQ(preload::run(command).out, "done\n");
  preload::Environment terminal = command.environment;
  terminal["TERM"] = "xterm";
  const std::string shown = run_at_terminal(command.argv, terminal).output;
  EXPECT_TRUE(contains(shown, "compiling [1/20] ")) << shown;
  EXPECT_TRUE(contains(shown, "compiling [20/20] ")) << shown;
  EXPECT_TRUE(contains(shown, "testing [7/90] ")) << shown;
  EXPECT_TRUE(contains(shown, "\x1b[Kdone\n")) << "the line is gone" << shown;
  EXPECT_FALSE(contains(shown, "warning")) << shown;
  terminal["TERM"] = "dumb";
  EXPECT_EQ(run_at_terminal(command.argv, terminal).output, "done\n");
}

// The headers are where setup_toolkit has found or put them.
TEST(SetupScript, SaysHowToCompileForTheSimulatedDevice) {
  const ScratchFolder folder;
  const ProcessResult fetched =
      preload::run(with_setup(folder, "CUDAToolkit_ROOT=/opt/cu; show_sim_lines"));
  EXPECT_TRUE(contains(
      fetched.out, "  export LD_LIBRARY_PATH=" CUPOOL_TEST_SOURCE_FOLDER
                   "/build/release/tests/sim/lib CUPOOL_SIM_MODE=timed\n"
                   "  g++ -I/opt/cu/include program.cpp -L$LD_LIBRARY_PATH -lcudart -o program\n"))
      << fetched.describe();
  const ProcessResult packaged =
      preload::run(with_setup(folder, "unset CUDAToolkit_ROOT; show_sim_lines"));
  EXPECT_TRUE(contains(packaged.out, "  g++ program.cpp ")) << packaged.describe();
}

TEST(SetupScript, PrintsTheOutputOfAFailedBuild) {
  const ScratchFolder folder;
  const ProcessResult result =
      preload::run(with_setup(folder,
                              "configure_preset() { echo 'the reason'; return 3; }\n"
                              "build_preset dev || echo \"status $?\""));
  EXPECT_EQ(result.out, "the reason\nstatus 3\n") << result.describe();
}

}  // namespace
}  // namespace cli
