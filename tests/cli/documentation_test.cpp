// SPDX-License-Identifier: Apache-2.0
// docs/command.md: its examples print what stands there, and its lists are complete.
#include <filesystem>
#include <regex>
#include <set>
#include <sstream>

#include "command.h"

namespace cli {
namespace {

using preload::ProcessResult;
using preload::ScratchFolder;

std::string page() {
  return preload::read_file(std::string(CUPOOL_TEST_SOURCE_FOLDER) + "/docs/command.md");
}

std::vector<std::string> examples() {
  std::vector<std::string> blocks;
  const std::string text = page();
  const std::string begin = "```console\n";
  for (std::size_t at = 0; (at = text.find(begin, at)) != std::string::npos;) {
    at += begin.size();
    blocks.push_back(text.substr(at, text.find("```\n", at) - at));
  }
  return blocks;
}

// A script that shows each command of a block before it runs it.
std::string script_of(const std::string& block) {
  std::istringstream lines(block);
  std::string script = "exec 2>&1\nstatus=0\n";
  for (std::string line; std::getline(lines, line);) {
    if (line.compare(0, 2, "$ ") != 0) continue;
    script +=
        "cat <<'SHOWN'\n" + line + "\nSHOWN\n(exit $status)\n" + line.substr(2) + "\nstatus=$?\n";
  }
  return script;
}

void replace_all(std::string* text, const std::string& what, const std::string& by) {
  for (std::size_t at = 0; (at = text->find(what, at)) != std::string::npos; at += by.size()) {
    text->replace(at, what.size(), by);
  }
}

std::string command_folder() {
  return std::filesystem::path(tested_command()).parent_path().string();
}

// Paths of this build, or of its installed files, as the page has them.
std::string as_documented(std::string output, const std::string& home) {
  const std::string runtime = CUPOOL_TEST_SANITIZER_RUNTIME;
  if (!runtime.empty()) replace_all(&output, runtime + ":", "");
  replace_all(&output, tested_library(), "/opt/cupool/lib/libcupool.so");
  const std::string profiles = "/opt/cupool/share/cupool/profiles/";
  replace_all(&output, command_folder() + "/config/", profiles);
  replace_all(
      &output,
      std::filesystem::path(command_folder()).parent_path().string() + "/share/cupool/profiles/",
      profiles);
  replace_all(&output, CUPOOL_TEST_SIM_FOLDER, "/usr/local/cuda/lib64");
  replace_all(&output, home, "/home/me");
  return output;
}

TEST(Documentation, ExamplesPrintWhatThePageShows) {
  if (const char* reason = reason_without_shell()) GTEST_SKIP() << reason;
  const std::vector<std::string> blocks = examples();
  ASSERT_GE(blocks.size(), 5u);
  for (const std::string& block : blocks) {
    const ScratchFolder folder;
    std::filesystem::copy_file(preload::probe_path("probe_runtime_shared"),
                               folder.path() + "/program");
    preload::Command command;
    command.argv = {"/bin/sh", "-c", "cd " + folder.path() + "\n" + script_of(block)};
    command.environment =
        environment({{"PATH", command_folder() + ":/usr/local/bin:/usr/bin:/bin"}});
    const ProcessResult result = preload::run(command);
    std::string shown = as_documented(result.out, folder.path());
    // The page was written on one machine.
    if (shown.find("AArch64") != std::string::npos) {
      replace_all(&shown, "AArch64", "x86-64");
      replace_all(&shown, "/lib/ld-linux-aarch64.so.1", "/lib64/ld-linux-x86-64.so.2");
    }
    EXPECT_EQ(shown, block);
  }
}

TEST(Documentation, NamesEveryFinding) {
  const std::string source =
      preload::read_file(std::string(CUPOOL_TEST_SOURCE_FOLDER) + "/src/cli/doctor/diagnosis.cpp");
  const std::regex finding("(?:obstacle|warning|note)\\(findings,\\s+\"([a-z-]+)\"");
  std::set<std::string> ids;
  for (std::sregex_iterator it(source.begin(), source.end(), finding), end; it != end; ++it) {
    ids.insert((*it)[1]);
  }
  EXPECT_GE(ids.size(), 25u);
  const std::string text = page();
  for (const std::string& id : ids) {
    EXPECT_NE(text.find("`" + id + "`"), std::string::npos) << id;
  }
}

void expect_keys(const nlohmann::json& answer, const std::string& text) {
  if (answer.is_object()) {
    for (const auto& [key, value] : answer.items()) {
      EXPECT_NE(text.find("`" + key + "`"), std::string::npos) << key;
      expect_keys(value, text);
    }
  } else if (answer.is_array() && !answer.empty()) {
    expect_keys(answer.at(0), text);
  }
}

TEST(Documentation, NamesEveryKeyOfTheDoctorsJson) {
  const ProcessResult result =
      cupool({"doctor", "--json", preload::probe_path("probe_runtime_shared")},
             {{"CUPOOL_FREE_MOD", "1"}});
  const nlohmann::json answer = nlohmann::json::parse(result.out, nullptr, false);
  ASSERT_TRUE(answer.is_object()) << result.describe();
  EXPECT_FALSE(answer.at("findings").empty());
  expect_keys(answer, page());
}

TEST(Documentation, EveryCommandHasItsPage) {
  const ProcessResult help = cupool({"--help"});
  const std::size_t commands = help.out.find("Commands:\n");
  ASSERT_NE(commands, std::string::npos) << help.out;
  std::istringstream lines(help.out.substr(commands));
  const std::regex entry("  ([a-z]+) .*");
  std::smatch match;
  int count = 0;
  for (std::string line; std::getline(lines, line);) {
    if (!std::regex_match(line, match, entry)) continue;
    ++count;
    EXPECT_NE(page().find("\n## cupool " + match[1].str() + "\n"), std::string::npos) << line;
  }
  EXPECT_GE(count, 3);
}

}  // namespace
}  // namespace cli
