// SPDX-License-Identifier: Apache-2.0
// The errors that a new user makes: each says what to do next.
#include <filesystem>
#include <fstream>

#include "command.h"
#include "example_report.h"
#include "pseudo_terminal.h"

namespace cli {
namespace {

using preload::contains;
using preload::ProcessResult;
using preload::ScratchFolder;

std::string file_with(const ScratchFolder& folder, const std::string& name, const std::string& text,
                      bool executable) {
  std::string path = folder.path() + "/" + name;
  std::ofstream(path) << text;
  if (executable) std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  return path;
}

TEST(FirstError, SaysWhatToDoNext) {
  const ScratchFolder folder;
  const std::string empty = file_with(folder, "empty.json", "", false);
  const std::string plain = file_with(folder, "plain", "echo hi\n", false);
  const std::string lost = file_with(folder, "lost", "#!/no/such/interpreter\n", true);
  const std::string windows = file_with(folder, "windows", "#!/bin/sh\r\necho\r\n", true);
  const struct {
    std::vector<std::string> words;
    int code;
    const char* next;
  } rows[] = {
      {{"report"}, 2, "cupool report needs FILE: Reports, as CUPOOL_STATS=json writes them"},
      {{"replay"}, 2, "cupool replay needs FILE: A trace"},
      {{"completion"}, 2, "needs bash|zsh|fish"},
      {{"report", "/no/r.json"}, 2, "No such file or directory\nTo write a report: cupool run"},
      {{"report", empty}, 2, "To write a report: cupool run --stats json"},
      {{"report", folder.path() + "/none"}, 2, "To write a report"},
      {{"tune", "/no/r.json"}, 2, "To write a report"},
      {{"tune", "/no/program"}, 2, "/no/program: not found, neither as a program nor as a report"},
      {{"doctor", lost}, 2, "names an interpreter that cannot be started: "},
      {{"doctor", windows}, 2, "The lines end as those of Windows: sed -i 's/\\r$//' "},
      {{"-n", "3", "compare", "true"}, 2, "cupool has no option -n before a command\n"},
      {{"compare", "--json", "true"}, 2, "cupool compare has no option --json"},
      {{"leaks", "./program"}, 2, "cupool has no command leaks. It is a setting: cupool options"},
      {{"run", "--leaks", "./program"}, 2, "CUPOOL_LEAKS=\"./program\" is not understood"},
      {{"run", "--leaks", windows}, 2, ". For the program: cupool run --leaks 1 /"},
      {{"compare", "--ipc", windows, "x"}, 2, ". For the program: cupool compare --ipc VALUE /"},
      {{"observe", "--ipc", "./program"}, 2, "CUPOOL_IPC=\"./program\" is not understood"},
      {{"compare", "--ipc", "./program"}, 2, "CUPOOL_IPC=\"./program\" is not understood"},
      {{"tune", "--ipc", "./program"}, 2, "CUPOOL_IPC=\"./program\" is not understood"},
      {{"run", "--profile", plain, "true"}, 2, "plain:1: not a KEY=VALUE line\n"},
      {{"replay", "/no/t.csv"}, 2, "cupool run --trace run.csv ./program writes a trace"},
      {{"run", plain}, 126, "Permission denied. To make it a program: chmod +x"},
      {{"run", folder.path()}, 126, "Is a directory. Name a program in it"},
      {{"run", lost}, 127, "is not there. cupool doctor names it"},
      {{"compare", lost}, 127, "is not there. cupool doctor names it"},
      {{"compare", "--ignore", "(", "true"}, 2, "A backslash before ( )"},
      {{"compare", "-n", "x", "true"}, 2, "not in range 1 to 1000"},
  };
  for (const auto& row : rows) {
    const ProcessResult result = cupool(row.words);
    EXPECT_EQ(result.exit_code, row.code) << result.describe();
    EXPECT_TRUE(contains(result.err, row.next)) << result.err;
    EXPECT_EQ(result.out, "");
  }
  const ProcessResult folderless = cupool({"compare", "true"}, {{"TMPDIR", "/no"}});
  EXPECT_EQ(folderless.exit_code, 2);
  EXPECT_TRUE(contains(folderless.err, "Set TMPDIR to a folder that can be written"))
      << folderless.err;
  EXPECT_TRUE(contains(cupool({"compare", "-n", "1", "true"}).out, "cupool doctor true\n"));
}

// `cupool report --html *.json` takes the first report for the page.
TEST(FirstError, OfAForgottenPageOverwritesNoReport) {
  const ScratchFolder folder;
  const std::string report = write_report(folder.path(), "a.json", example_report());
  const std::string other = write_report(folder.path(), "b.json", example_report());
  const std::string text = preload::read_file(report);
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"report", "--html", report},
        {"report", "--html", report, other},
        {"report", "--html", report, report},
        {"diff", "--html", report, other, other},
        {"tune", "-o", report, other}}) {
    const ProcessResult result = cupool(words);
    EXPECT_EQ(result.exit_code, 2) << result.describe();
    EXPECT_TRUE(contains(result.err, report + " would be overwritten. Name a new file first"))
        << result.err;
    EXPECT_EQ(preload::read_file(report), text);
  }
  EXPECT_EQ(cupool({"report", "--html", folder.path() + "/page", other}).exit_code, 0);
}

// Behind a report there is no advice for want of one.
TEST(FirstError, OfAMissingReportIsNotExplainedBehindAReport) {
  const auto shown = [](const std::string& of) {
    return run_at_terminal({tested_command(), "run", "--stats", "text", of}, environment()).output;
  };
  const std::string served = shown(preload::probe_path("probe_runtime_shared"));
  EXPECT_TRUE(contains(served, "Allocations")) << "the report" << served;
  EXPECT_TRUE(contains(served, "to keep the report")) << served;
  EXPECT_FALSE(contains(served, "cupool doctor")) << served;
  EXPECT_TRUE(contains(shown("true"), "shows no way to CUDA")) << "a program without CUDA";
}

}  // namespace
}  // namespace cli
