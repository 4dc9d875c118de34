// SPDX-License-Identifier: Apache-2.0
// Starting programs: what is measured and kept of them, and what only a terminal sees.
#include "cli/shell/child.h"

#include <signal.h>
#include <sys/wait.h>

#include "command.h"
#include "pseudo_terminal.h"

namespace cli {
namespace {

using cupool::cli::CapturedEnd;
using cupool::cli::ChildEnd;
using cupool::cli::ChildStart;
using cupool::cli::Environment;

ChildStart shell(const std::string& script) {
  ChildStart start;
  start.argv = {"/bin/sh", "-c", script};
  start.environment = Environment::inherited();
  return start;
}

TEST(Child, KeepsBothStreamsApart) {
  const CapturedEnd end = run_captured(shell("echo out; echo err >&2; exit 3"));
  EXPECT_EQ(end.standard_output, "out\n");
  EXPECT_EQ(end.standard_error, "err\n");
  EXPECT_EQ(end.end.exit_code, 3);
  EXPECT_EQ(end.end.shell_code(), 3);
}

TEST(Child, KeepsMoreThanAPipeHolds) {
  const CapturedEnd end = run_captured(shell("head -c 3000000 /dev/zero"));
  EXPECT_EQ(end.standard_output.size(), 3000000u);
}

TEST(Child, MeasuresTimeAndUse) {
  const ChildEnd end =
      run_child(shell("sleep 0.2; i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done"));
  EXPECT_EQ(end.exit_code, 0);
  EXPECT_GE(end.wall_ns, 200'000'000u);
  EXPECT_LT(end.wall_ns, 60'000'000'000u);
  EXPECT_GT(end.usage.ru_utime.tv_sec * 1'000'000 + end.usage.ru_utime.tv_usec, 0);
  EXPECT_GT(end.usage.ru_maxrss, 0);
}

TEST(Child, TellsASignalFromAnExitCode) {
  const ChildEnd end = run_child(shell("kill -TERM $$"));
  EXPECT_EQ(end.signal, SIGTERM);
  EXPECT_EQ(end.shell_code(), 128 + SIGTERM);
}

TEST(Child, WaitsWhereTheParentIgnoresItsChildren) {
  struct sigaction ignored {};
  struct sigaction before {};
  ignored.sa_handler = SIG_IGN;
  sigaction(SIGCHLD, &ignored, &before);
  const ChildEnd end = run_child(shell("exit 5"));
  struct sigaction after {};
  sigaction(SIGCHLD, &before, &after);
  EXPECT_EQ(end.exit_code, 5);
  EXPECT_EQ(after.sa_handler, SIG_IGN);
}

TEST(Child, SetsAndUnsetsVariables) {
  ChildStart start = shell("echo ${CHILD_A-none} ${CHILD_B-none} ${CHILD_AB-none}");
  start.environment.set("CHILD_A", "1");
  start.environment.set("CHILD_AB", "3");
  start.environment.set("CHILD_A", "2 words");
  start.environment.set("CHILD_B", "");
  start.environment.unset("CHILD_B");
  EXPECT_EQ(run_captured(start).standard_output, "2 words none 3\n");
  EXPECT_STREQ(start.environment.get("CHILD_A"), "2 words");
  EXPECT_EQ(start.environment.get("CHILD_B"), nullptr);
}

TEST(Terminal, ProgressIsShownAndGoneAgain) {
  const TerminalRun run = run_at_terminal({program("cli_progress_program")}, environment());
  EXPECT_NE(run.output.find("\x1b[Krun 1 of 2\x1b[Krun 2 of 2, xxx"), std::string::npos)
      << run.output;
  EXPECT_NE(run.output.find("x\x1b[Kdone\ncupool: next\n"), std::string::npos) << run.output;
  // One line of a terminal, so that one return wipes it.
  EXPECT_LT(run.output.size(), 200u);
}

TEST(Terminal, APipeSeesNothingOfIt) {
  preload::Command command;
  command.argv = {program("cli_progress_program")};
  command.environment = environment();
  const preload::ProcessResult result = preload::run(command);
  EXPECT_EQ(result.out, "done\n");
  EXPECT_EQ(result.err, "");
}

TEST(Terminal, ADumbTerminalGetsNoControlSequences) {
  const TerminalRun run =
      run_at_terminal({program("cli_progress_program")}, environment({{"TERM", "dumb"}}));
  EXPECT_EQ(run.output, "done\ncupool: next\n");
}

}  // namespace
}  // namespace cli
