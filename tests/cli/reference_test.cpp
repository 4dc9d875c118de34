// SPDX-License-Identifier: Apache-2.0
// The manual page and the completions: complete, clean, and tried in the shells themselves.
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <regex>
#include <sstream>

#include "command.h"

namespace cli {
namespace {

using preload::ProcessResult;
using preload::ScratchFolder;

bool is_installed(const char* name) {
  for (const char* folder : {"/usr/bin/", "/bin/", "/usr/local/bin/"}) {
    if (access((folder + std::string(name)).c_str(), X_OK) == 0) return true;
  }
  return false;
}

// A program of this machine with `text` on its standard input.
ProcessResult run_on(const std::string& text, const std::string& words) {
  const ScratchFolder folder;
  std::ofstream(folder.path() + "/input") << text;
  preload::Command command;
  command.argv = {"/bin/sh", "-c", "cd " + folder.path() + " && " + words};
  command.environment = preload::base_environment();  // none of this runs the command
  command.environment["HOME"] = folder.path();
  command.environment["PATH"] = "/usr/local/bin:/usr/bin:/bin";
  return preload::run(command);
}

// The first word of each line of --help that has one: commands, or options with all their names.
std::vector<std::string> words_of_help(const std::vector<std::string>& arguments,
                                       const std::string& pattern) {
  const ProcessResult help = cupool(arguments);
  std::istringstream lines(help.out);
  std::vector<std::string> words;
  const std::regex entry(pattern);
  std::smatch match;
  for (std::string line; std::getline(lines, line);) {
    if (!std::regex_search(line, match, entry)) continue;
    std::istringstream names(match[1].str());
    for (std::string name; std::getline(names, name, ',');) words.push_back(name);
  }
  return words;
}

std::vector<std::string> commands() {
  return words_of_help({"--help"}, "^  ([a-z]+)( |$)");
}

std::vector<std::string> options_of(const std::string& command) {
  const bool has_more = cupool({command, "--help"}).out.find("--help-all") != std::string::npos;
  return words_of_help({command, has_more ? "--help-all" : "--help"}, "^  (-[-a-z,]+)( |$)");
}

// The candidates that bash has for the last of `words`.
std::vector<std::string> bash_candidates(const std::vector<std::string>& words) {
  std::string array;
  for (const std::string& word : words) array += " '" + word + "'";
  const ProcessResult result =
      run_on(cupool({"completion", "bash"}).out + "\nCOMP_WORDS=(" + array +
                 ")\nCOMP_CWORD=" + std::to_string(words.size() - 1) +
                 "\n_cupool\n((${#COMPREPLY[@]})) && printf '%s\\n' \"${COMPREPLY[@]}\"\n",
             "touch a.json b.json && bash --norc input");
  EXPECT_EQ(result.err, "");
  std::vector<std::string> candidates;
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) candidates.push_back(line);
  return candidates;
}

bool holds(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

using Words = std::vector<std::string>;

TEST(Completion, OfBashHasEveryCommandAndOption) {
  const Words first = bash_candidates({"cupool", ""});
  ASSERT_GE(commands().size(), 12u);
  EXPECT_TRUE(holds(first, "--version"));
  for (const std::string& command : commands()) {
    EXPECT_TRUE(holds(first, command)) << command;
    const Words options = options_of(command);
    ASSERT_FALSE(options.empty()) << command;
    EXPECT_EQ(bash_candidates({"cupool", command, "-"}), options) << command;
  }
}

TEST(Completion, OfBashKnowsValuesFilesAndPrograms) {
  const Words modes = {"auto", "ordered", "sync"};
  EXPECT_EQ(bash_candidates({"cupool", "run", "--free-mode", ""}), modes);
  EXPECT_EQ(bash_candidates({"cupool", "run", "--free-mode", "="}), modes);
  EXPECT_EQ(bash_candidates({"cupool", "run", "--free-mode", "=", "s"}), Words{"sync"});
  EXPECT_EQ(bash_candidates({"cupool", "tune", "--set", "CUPOOL_FREE_"}),
            Words{"CUPOOL_FREE_MODE="});
  EXPECT_EQ(bash_candidates({"cupool", "run", "--set", "CUPOOL_IPC", "=", "0", "--pri"}),
            Words{"--print"});
  EXPECT_EQ(bash_candidates({"cupool", "env", "--shell", "k"}), Words{"kubernetes"});
  EXPECT_EQ(bash_candidates({"cupool", "report", "--html", "p.html", ""}),
            (Words{"a.json", "b.json", "input"}));
  EXPECT_EQ(bash_candidates({"cupool", "observe", "--json", "a"}), Words{"a.json"});
  EXPECT_TRUE(bash_candidates({"cupool", "run", "--max-pending", ""}).empty());
  EXPECT_EQ(bash_candidates({"cupool", "run", "--profile", "m"}), Words{"mpi"});
  EXPECT_EQ(bash_candidates({"cupool", "help", "obs"}), Words{"observe"});
  EXPECT_EQ(bash_candidates({"cupool", "options", "CUPOOL_FREE"}), Words{"CUPOOL_FREE_MODE"});
  // The program, and then its own words.
  EXPECT_TRUE(holds(bash_candidates({"cupool", "run", "--print", "mkdi"}), "mkdir"));
  EXPECT_TRUE(holds(bash_candidates({"cupool", "tune", "--", "mkdi"}), "mkdir"));
  EXPECT_EQ(bash_candidates({"cupool", "run", "cat", "b"}), Words{"b.json"});
  EXPECT_TRUE(bash_candidates({"cupool", "run", "cat", "--fre"}).empty());
}

TEST(Completion, OfFishHasEveryCommandAndOption) {
  if (!is_installed("fish")) GTEST_SKIP() << "fish is not installed";
  const std::string script = cupool({"completion", "fish"}).out;
  const auto candidates = [&script](const std::string& line) {
    const ProcessResult result =
        run_on(script + "\ncomplete -C '" + line + "' | string split -f1 \\t\n",
               "touch a.json b.json && fish --no-config input");
    EXPECT_EQ(result.err, "");
    Words words;
    std::istringstream lines(result.out);
    for (std::string word; std::getline(lines, word);) words.push_back(word);
    return words;
  };
  const Words first = candidates("cupool ");
  for (const std::string& command : commands()) {
    EXPECT_TRUE(holds(first, command)) << command;
    const Words shown = candidates("cupool " + command + " -");
    for (const std::string& option : options_of(command)) {
      EXPECT_TRUE(holds(shown, option)) << command << " " << option;
    }
  }
  EXPECT_EQ(candidates("cupool run --free-mode "), (Words{"auto", "ordered", "sync"}));
  EXPECT_EQ(candidates("cupool env --shell=ku"), Words{"--shell=kubernetes"});
  EXPECT_EQ(candidates("cupool observe --json a"), Words{"a.json"});
  EXPECT_TRUE(holds(candidates("cupool run --ipc 0 mkdi"), "mkdir"));
  EXPECT_TRUE(candidates("cupool run cat --free").empty());
  EXPECT_TRUE(holds(candidates("cupool run --print -- cat b"), "b.json"));
}

TEST(Completion, OfZshHasEveryCommandAndOption) {
  if (!is_installed("zsh")) GTEST_SKIP() << "zsh is not installed";
  const std::string script = cupool({"completion", "zsh"}).out;
  const ProcessResult syntax = run_on(script, "zsh -f -n input");
  EXPECT_EQ(syntax.exit_code, 0) << syntax.describe();
  EXPECT_EQ(syntax.err, "");
  EXPECT_EQ(script.rfind("#compdef cupool\n", 0), 0u);
  // It would hide zsh's table of programs.
  EXPECT_EQ(script.find("local -a commands"), std::string::npos);
  for (const std::string& command : commands()) {
    const std::size_t begin = script.find("\n        " + command + ")\n");
    ASSERT_NE(begin, std::string::npos) << command;
    const std::string part = script.substr(begin, script.find(";;", begin) - begin);
    EXPECT_NE(script.find("'" + command + ":"), std::string::npos) << command;
    for (const std::string& option : options_of(command)) {
      EXPECT_NE(part.find(option), std::string::npos) << command << " " << option;
    }
  }
}

TEST(Completion, NamesTheShellsThatItKnows) {
  const ProcessResult result = cupool({"completion", "tcsh"});
  EXPECT_EQ(result.exit_code, 2) << result.describe();
  EXPECT_NE(result.err.find("bash, zsh or fish"), std::string::npos) << result.err;
  EXPECT_EQ(cupool({"completion"}).exit_code, 2);
}

std::string plain(const std::string& page) {
  return std::regex_replace(page, std::regex("\\\\-"), "-");
}

TEST(ManPage, HasEveryCommandAndOption) {
  const std::string page = plain(cupool({"man"}).out);
  EXPECT_EQ(page.rfind(".\\\" Written by", 0), 0u) << page.substr(0, 100);
  EXPECT_TRUE(std::regex_search(
      page, std::regex("\\.TH CUPOOL 1 \"20[0-9]{2}-[0-9]{2}-[0-9]{2}\" \"cupool [0-9.]+\"")));
  const std::string settings = page.substr(page.find("\n.SH SETTINGS\n"));
  for (const std::string& command : commands()) {
    const std::size_t begin = page.find("\n.SS \"cupool " + command + "\"\n");
    ASSERT_NE(begin, std::string::npos) << command;
    const std::string part = page.substr(begin, page.find("\n.S", begin + 1) - begin) + settings;
    for (const std::string& option : options_of(command)) {
      EXPECT_NE(part.find("\\fB" + option + "\\fR"), std::string::npos) << command << option;
    }
  }
  for (const char* variable : {"CUPOOL_FREE_MODE", "CUPOOL_LOG_FILE", "CUPOOL_LIBRARY"}) {
    EXPECT_NE(settings.find(variable), std::string::npos) << variable;
  }
}

TEST(ManPage, IsCleanForItsReaders) {
  const std::string page = cupool({"man"}).out;
  bool read = false;
  if (is_installed("man") && is_installed("groff")) {
    read = true;
    const ProcessResult result = run_on(page, "man --warnings -E UTF-8 -l ./input >/dev/null");
    EXPECT_EQ(result.exit_code, 0) << result.describe();
    EXPECT_EQ(result.err, "");
  }
  if (is_installed("mandoc")) {
    read = true;
    const ProcessResult result = run_on(page, "mandoc -Tlint input");
    EXPECT_EQ(result.exit_code, 0) << result.describe();
    EXPECT_EQ(result.out, "");
  }
  if (!read) GTEST_SKIP() << "neither man nor mandoc is installed";
}

TEST(Help, HasTheUseBeforeTheOptions) {
  const std::string run = cupool({"run", "--help"}).out;
  EXPECT_LT(run.find("126: the program cannot be executed"), run.find("\nOptions:\n")) << run;
  // That line is about the list of commands.
  EXPECT_EQ(cupool({"options", "--help"}).out.find("COMMAND --help"), std::string::npos);
}

TEST(Help, OfAWordFitsOnAScreenAndHelpAllHasTheSettings) {
  for (const std::string& command : commands()) {
    const std::string help = cupool({command, "--help"}).out;
    EXPECT_LT(help.find("Usage: cupool " + command), help.find("\nOptions:\n")) << help;
    EXPECT_LE(std::count(help.begin(), help.end(), '\n'), 30) << help;
    EXPECT_EQ(help.find("  --max-pending"), std::string::npos) << help;
    if (help.find("--help-all") == std::string::npos) continue;
    const std::string all = cupool({command, "--help-all"}).out;
    EXPECT_NE(all.find("\nSettings: Allocation:\n"), std::string::npos) << all;
    EXPECT_NE(all.find("  --max-pending VALUE"), std::string::npos) << all;
  }
  EXPECT_NE(cupool({"run", "--help"}).out.find("cupool run --help-all"), std::string::npos);
}

// A word that decides a setting itself does not offer it, nor take it by another way.
TEST(Help, OffersNoSettingThatTheWordDoesNotTake) {
  const struct {
    const char* command;
    const char* option;
    const char* variable;
  } rows[] = {{"observe", "--mode", "CUPOOL_MODE"},
              {"observe", "--trace", "CUPOOL_TRACE"},
              {"observe", "--stats-file", "CUPOOL_STATS_FILE"},
              {"compare", "--enable", "CUPOOL_ENABLE"},
              {"tune", "--stats", "CUPOOL_STATS"},
              {"replay", "--mode", "CUPOOL_MODE"}};
  for (const auto& row : rows) {
    const std::string all = cupool({row.command, "--help-all"}).out;
    EXPECT_EQ(all.find("  " + std::string(row.option) + " "), std::string::npos) << all;
    EXPECT_EQ(cupool({"completion", "bash"})
                  .out.find("'" + std::string(row.command) + " " + row.option + "'"),
              std::string::npos);
    for (const std::vector<std::string>& given :
         {std::vector<std::string>{row.command, row.option, "off", "true"},
          std::vector<std::string>{row.command, std::string(row.option) + "=off", "true"},
          std::vector<std::string>{row.command, "--set", std::string(row.variable) + "=off",
                                   "true"}}) {
      const ProcessResult result = cupool(given);
      EXPECT_EQ(result.exit_code, 2) << result.describe();
      EXPECT_NE(result.err.find(row.variable), std::string::npos) << result.err;
      EXPECT_NE(result.err.find("leave it out"), std::string::npos) << result.err;
    }
    EXPECT_EQ(cupool({"run", row.option + std::string("=off"), "--print", "true"}).exit_code, 0)
        << "run takes every setting";
  }
}

TEST(Help, ExplainsAWordAsItsOwnHelpDoes) {
  EXPECT_EQ(cupool({"help", "run"}).out, cupool({"run", "--help"}).out);
  EXPECT_EQ(cupool({"help"}).out, cupool({"--help"}).out);
  const ProcessResult alone = cupool({});
  EXPECT_EQ(alone.exit_code, 0) << alone.describe();
  EXPECT_EQ(alone.out, cupool({"--help"}).out);
  EXPECT_EQ(cupool({"-V"}).out, cupool({"--version"}).out);
  const ProcessResult unknown = cupool({"help", "rnu"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_EQ(unknown.err,
            "cupool: cupool has no command rnu. Did you mean run?\nSee: cupool --help\n");
  // A program where a command should be: the missing word is known.
  const ProcessResult program = cupool({"./my program", "--steps", "3"});
  EXPECT_EQ(program.exit_code, 2);
  EXPECT_EQ(program.err,
            "cupool: cupool has no command ./my program. To start a program: cupool run './my "
            "program'\nSee: cupool --help\n");
}

}  // namespace
}  // namespace cli
