// SPDX-License-Identifier: Apache-2.0
// `cupool env`: shells that read it have exactly the given values, containers and jobs the words
// that they take.
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "command.h"

namespace cli {
namespace {

using preload::ProcessResult;
using preload::ScratchFolder;

// What a shell would change: blanks, quotes, dollars, patterns, a line end.
const char* const kAwkward = "a  b'c\"d$HOME`e`\\f\\\\g*#;&\t(h)!i\nj%p.log";
const char* const kAwkwardLine = "a  b'c\"d$HOME`e`\\f\\\\g*#;&(h)j%p.log";

// The file of a program, or "" if this machine has none.
std::string installed(const std::string& name) {
  for (const char* folder : {"/usr/bin/", "/bin/", "/usr/local/bin/"}) {
    const std::string path = folder + name;
    if (access(path.c_str(), X_OK) == 0) return path;
  }
  return "";
}

ProcessResult script(const std::string& shell, const std::string& text,
                     const preload::Environment& extra = {}) {
  preload::Command command;
  command.argv = {shell, "-c", text};
  command.environment = environment(extra);
  command.environment["CUPOOL"] = CUPOOL_TEST_COMMAND;
  command.environment["PROBE"] = preload::probe_path("probe_runtime_shared");
  return preload::run(command);
}

TEST(Env, GivesEveryPosixShellTheExactValues) {
  if (const char* reason = reason_without_shell()) GTEST_SKIP() << reason;
  for (const char* name : {"sh", "bash", "dash", "zsh"}) {
    const std::string shell = installed(name);
    if (shell.empty()) continue;
    SCOPED_TRACE(shell);
    const std::string evaluated = "eval \"$(\"$CUPOOL\" env --shell " + std::string(name) +
                                  " --stats-file \"$AWKWARD\" --free-mode sync --profile mpi)\"; ";
    const ProcessResult result =
        script(shell,
               "set -eu; unset LD_PRELOAD; " + evaluated +
                   "printf '<%s>' \"$LD_PRELOAD\" \"$CUPOOL_STATS_FILE\" \"$CUPOOL_FREE_MODE\"",
               {{"AWKWARD", kAwkward}});
    EXPECT_EQ(result.out, "<" + tested_library() + "><" + kAwkward + "><sync>")
        << result.describe();
    const ProcessResult kept = script(
        shell, "LD_PRELOAD='/one.so /two.so'; " + evaluated + "printf '<%s>' \"$LD_PRELOAD\"",
        {{"AWKWARD", ""}});
    EXPECT_EQ(kept.out, "<" + tested_library() + ":/one.so /two.so>") << kept.describe();
  }
}

TEST(Env, GivesFishTheExactValues) {
  const std::string shell = installed("fish");
  if (shell.empty()) GTEST_SKIP() << "fish is not installed";
  if (const char* reason = reason_without_shell()) GTEST_SKIP() << reason;
  const ScratchFolder home;
  const preload::Environment extra = {{"AWKWARD", kAwkward}, {"HOME", home.path()}};
  const std::string evaluated = "$CUPOOL env --shell fish --stats-file \"$AWKWARD\" | source; ";
  const std::string shown = "printf '<%s>' \"$LD_PRELOAD\" \"$CUPOOL_STATS_FILE\"";
  for (const char* empty : {"set -e LD_PRELOAD; ", "set -g LD_PRELOAD ''; "}) {
    const ProcessResult result = script(shell, empty + evaluated + shown, extra);
    EXPECT_EQ(result.out, "<" + tested_library() + "><" + kAwkward + ">") << result.describe();
  }
  const ProcessResult kept =
      script(shell, "set -g LD_PRELOAD /one.so:/two.so; " + evaluated + shown, extra);
  EXPECT_EQ(kept.out, "<" + tested_library() + ":/one.so:/two.so><" + kAwkward + ">")
      << kept.describe();
}

TEST(Env, GivesCshTheExactValues) {
  const std::string shell = installed("csh");
  if (shell.empty()) GTEST_SKIP() << "csh is not installed";
  if (const char* reason = reason_without_shell()) GTEST_SKIP() << reason;
  const ProcessResult printed =
      cupool({"env", "--shell", "csh", "--stats-file", kAwkwardLine, "--ipc", "0"});
  const ScratchFolder folder;
  preload::Command command;
  // As `eval "`cupool env`"` reads it, with the text from a file.
  const std::string file = folder.path() + "/text";
  std::ofstream(file) << printed.out;
  command.argv = {shell, "-f", "-c",
                  "unsetenv LD_PRELOAD; eval \"`cat " + file + "`\"; printenv CUPOOL_STATS_FILE"};
  command.environment = environment();
  const ProcessResult evaluated = preload::run(command);
  EXPECT_EQ(evaluated.out, std::string(kAwkwardLine) + "\n") << evaluated.describe();
  EXPECT_NE(printed.out.find("setenv LD_PRELOAD "), std::string::npos) << printed.out;
  EXPECT_EQ(cupool({"env", "--shell", "csh", "--stats-file", "a\nb"}).exit_code, 2);
}

#ifndef CUPOOL_TEST_SANITIZED_BUILD
TEST(Env, ServesWhatTheShellStarts) {
  const ScratchFolder folder;
  const std::string report = folder.path() + "/the report.json";
  const ProcessResult result = script(
      "/bin/sh", "eval \"$(\"$CUPOOL\" env --stats json --stats-file \"$REPORT\")\"; \"$PROBE\"",
      {{"REPORT", report}});
  EXPECT_EQ(result.exit_code, 0) << result.describe();
  EXPECT_NE(result.out.find("wrong_bytes=0"), std::string::npos) << result.describe();
  const nlohmann::json answer = nlohmann::json::parse(preload::read_file(report), nullptr, false);
  ASSERT_TRUE(answer.is_object()) << result.describe();
  EXPECT_GT(answer.at("devices").at(0).at("counters").at("malloc_calls_total"), 0);
}
#endif

TEST(Env, GivesDockerVariablesAndTheVolume) {
  const std::string library = tested_library();
  const ProcessResult result = cupool({"env", "--shell", "docker", "--stats-file", "my log's",
                                       "--profile", "mpi", "--free-mode", "auto"});
  EXPECT_EQ(result.exit_code, 0) << result.describe();
  // A container lacks the profile's file: its lines are there, and what is given comes first.
  EXPECT_EQ(result.out, "-e LD_PRELOAD=" + library +
                            " -e CUPOOL_FREE_MODE=auto -e 'CUPOOL_STATS_FILE=my log'\\''s'"
                            " -e CUPOOL_BACKEND=malloc -v " +
                            library + ":" + library + ":ro\n");
}

TEST(Env, GivesKubernetesAFragment) {
  const std::string library = tested_library();
  const ProcessResult result = cupool(
      {"env", "--shell", "kubernetes", "--stats-file", "a \"$(b)\" $c\n", "--stats", "text,json"});
  EXPECT_EQ(result.out,
            "# For a container:\n"
            "env:\n"
            "  - name: LD_PRELOAD\n"
            "    value: \"" +
                library +
                "\"\n"
                "  - name: CUPOOL_STATS\n"
                "    value: \"text,json\"\n"
                "  - name: CUPOOL_STATS_FILE\n"
                "    value: \"a \\\"$$(b)\\\" $$c\\n\"\n"
                "volumeMounts:\n"
                "  - name: cupool\n"
                "    mountPath: \"" +
                library +
                "\"\n"
                "    readOnly: true\n"
                "# For its pod; the library is installed on every node:\n"
                "volumes:\n"
                "  - name: cupool\n"
                "    hostPath:\n"
                "      path: \"" +
                library +
                "\"\n"
                "      type: File\n")
      << result.describe();
  EXPECT_EQ(cupool({"env", "--shell", "kubernetes", "--stats-file", "\xff"}).exit_code, 2);
}

TEST(Env, GivesSlurmOneWord) {
  const std::string before = environment()["LD_PRELOAD"];
  const std::string preload = (before.empty() ? "" : before + ":") + tested_library();
  const ProcessResult result = cupool({"env", "--shell", "slurm", "--free-mode", "sync"});
  EXPECT_EQ(result.out, "--export=ALL,LD_PRELOAD=" + preload + ",CUPOOL_FREE_MODE=sync\n")
      << result.describe();
  const ProcessResult comma = cupool({"env", "--shell", "slurm", "--stats", "text,json"});
  EXPECT_EQ(comma.exit_code, 2);
  EXPECT_EQ(comma.out, "");
  EXPECT_NE(comma.err.find("CUPOOL_STATS=text,json"), std::string::npos) << comma.err;
  EXPECT_NE(comma.err.find("eval \"$(cupool env"), std::string::npos) << comma.err;
}

TEST(Env, RefusesWhatRunRefuses) {
  const struct {
    std::vector<std::string> arguments;
    const char* says;
  } cases[] = {
      {{"--free-mode", "sometimes"}, "it takes auto, ordered or sync"},
      {{"--set", "FREE_MODE=sync"}, "Did you mean CUPOOL_FREE_MODE=sync?"},
      {{"--free-mod", "sync"}, "cupool env has no option --free-mod. Did you mean --free-mode?"},
      {{"--profile", "mpu"}, "Did you mean mpi?"},
      {{"--shell", "kubernete"}, "Did you mean kubernetes?"},
      {{"./program"}, "./program"},
  };
  for (const auto& wrong : cases) {
    SCOPED_TRACE(wrong.says);
    std::vector<std::string> arguments = {"env"};
    arguments.insert(arguments.end(), wrong.arguments.begin(), wrong.arguments.end());
    const ProcessResult result = cupool(arguments);
    EXPECT_EQ(result.exit_code, 2) << result.describe();
    EXPECT_EQ(result.out, "");
    EXPECT_NE(result.err.find(wrong.says), std::string::npos) << result.err;
  }
}

// A path with a blank or a colon: LD_PRELOAD cannot hold it.
TEST(Env, LinksToALibraryInAnAwkwardFolder) {
  if (const char* reason = reason_without_shell()) GTEST_SKIP() << reason;
  const ScratchFolder folder;
  for (const char* name : {"with blank", "with:colon"}) {
    const std::string below = folder.path() + "/" + name;
    std::filesystem::create_directory(below);
    const std::string copy = below + "/libcupool.so";
    std::filesystem::copy_file(tested_library(), copy);
    const preload::Environment chosen = {{"CUPOOL_LIBRARY", copy},
                                         {"XDG_RUNTIME_DIR", folder.path()}};
    const ProcessResult served = script(
        "/bin/sh",
        "eval \"$(\"$CUPOOL\" env --stats text)\"; unset CUPOOL_LIBRARY; exec \"$PROBE\"", chosen);
    EXPECT_EQ(served.exit_code, 0) << served.describe();
    EXPECT_NE(served.err.find("driver calls replaced"), std::string::npos) << served.describe();
    for (const char* elsewhere : {"kubernetes", "slurm"}) {
      const ProcessResult refused = cupool({"env", "--shell", elsewhere}, chosen);
      EXPECT_EQ(refused.exit_code, 2) << refused.describe();
      EXPECT_EQ(refused.out, "");
      EXPECT_NE(refused.err.find("Copy the library elsewhere and set CUPOOL_LIBRARY"),
                std::string::npos)
          << refused.err;
    }
  }
}

}  // namespace
}  // namespace cli
