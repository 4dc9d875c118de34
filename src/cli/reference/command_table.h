// SPDX-License-Identifier: Apache-2.0
// The words and options of the command as data: the manual page and the completions are written
// from this table, which is read from the parser itself, as `--help` is.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

namespace cupool::cli {

/// Where the program's words begin among the arguments of a sub-command.
enum class ProgramWords {
  none,           ///< the sub-command takes no program
  after_options,  ///< `cupool run [options] [--] program args`: at `--` or the first other word
  after_files,    ///< `cupool tune files`, or `cupool tune [--] program args`: at `--` or at a word
                  ///< that is a program (shell/program_word)
};

/// An option, or an operand (then without names).
struct OptionEntry {
  std::vector<std::string> names;    ///< "-n", "--runs"
  std::string value;                 ///< what it takes, "" for a flag: "N", "FILE", "sh|bash"
  std::string description;           ///< as in --help
  std::string variable;              ///< of a setting: "CUPOOL_FREE_MODE"; else ""
  std::vector<std::string> choices;  ///< words that it takes, if they are known
  bool takes_file = false;
  bool required = false;
  bool repeated = false;  ///< may be given several times

  bool takes_value() const { return !value.empty(); }
};

/// A sub-command.
struct CommandEntry {
  std::string name;
  std::string description;
  std::string footer;
  ProgramWords program = ProgramWords::none;
  std::vector<OptionEntry> options;
  std::vector<OptionEntry> operands;
};

/// The whole command.
struct CommandTable {
  std::string description;
  std::vector<OptionEntry> options;  ///< before any sub-command
  std::vector<CommandEntry> commands;
};

/// Reads the table from the parser. `program_words` says where each sub-command's program begins.
CommandTable command_table(const CLI::App& app,
                           const std::function<ProgramWords(const std::string&)>& program_words);

/// The first sentence of a description, for a list of candidates. Pure.
std::string first_sentence(const std::string& description);

}  // namespace cupool::cli
