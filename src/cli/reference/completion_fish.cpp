// SPDX-License-Identifier: Apache-2.0
// One `complete` for each option; options that are alike in several commands share it.
#include <utility>

#include "cli/reference/completion.h"
#include "cli/shell/shell_words.h"

namespace cupool::cli {

namespace {

// The words behind `complete -c cupool -n ...`.
std::string option_words(const OptionEntry& option) {
  std::string words;
  for (const std::string& name : option.names) {
    const bool is_long = name.compare(0, 2, "--") == 0;
    words += is_long ? " -l " + name.substr(2) : " -s " + name.substr(1);
  }
  if (option.takes_value()) words += option.takes_file ? " -r -F" : " -x";
  std::string choices;
  for (const std::string& word : option.choices) choices += (choices.empty() ? "" : " ") + word;
  if (!choices.empty()) words += " -a " + fish_word(choices);
  return words + " -d " + fish_word(first_sentence(option.description));
}

// Options and the commands that have them, in the order of the table.
std::vector<std::pair<std::string, std::string>> grouped(const CommandTable& table) {
  std::vector<std::pair<std::string, std::string>> groups;
  for (const CommandEntry& command : table.commands) {
    for (const OptionEntry& option : command.options) {
      const std::string words = option_words(option);
      bool known = false;
      for (auto& [present, commands] : groups) {
        if (present != words) continue;
        commands += " " + command.name;
        known = true;
      }
      if (!known) groups.emplace_back(words, command.name);
    }
  }
  return groups;
}

std::string operand_line(const CommandEntry& command) {
  if (command.operands.empty()) return "";
  const OptionEntry& operand = command.operands.front();
  std::string choices;
  for (const std::string& word : operand.choices) choices += (choices.empty() ? "" : " ") + word;
  return "complete -c cupool -n '__cupool_is " + command.name + "'" +
         (operand.takes_file ? " -F" : "") + (choices.empty() ? "" : " -a " + fish_word(choices)) +
         "\n";
}

constexpr const char* kFishFunctions = R"fish(
# The number of the program's first word, if it has begun.
function __cupool_program_at
    set -l words (commandline -opc)
    set -l at 3
    while test $at -le (count $words)
        switch $words[$at]
            case --
                math $at + 1
                return
            case '-*=*'
            case '-*'
                if contains -- "$words[2] $words[$at]" $__cupool_with_value
                    set at (math $at + 1)
                end
            case '*'
                if contains -- $words[2] $__cupool_with_program
                    echo $at
                    return
                end
        end
        set at (math $at + 1)
    end
end

function __cupool_begins
    test (count (commandline -opc)) -eq 1
end

# Whether options of one of these commands may follow.
function __cupool_is
    set -l words (commandline -opc)
    set -l program (__cupool_program_at)
    set -q words[2]; and contains -- $words[2] $argv; and not set -q program[1]
end

function __cupool_has_program
    set -l words (commandline -opc)
    set -l program (__cupool_program_at)
    set -q program[1]; and return
    set -q words[2]; and contains -- $words[2] $__cupool_with_program
end

# The program and its words, completed as if they stood alone.
function __cupool_program
    set -l words (commandline -opc)
    set -l at (__cupool_program_at)
    set -l own
    if set -q at[1]; and test $at -le (count $words)
        set own (string escape -- $words[$at..-1])
    end
    complete -C (string join ' ' -- $own (commandline -ct))
end

complete -c cupool -f
complete -c cupool -n __cupool_has_program -a '(__cupool_program)'
)fish";

}  // namespace

std::string fish_completion(const CommandTable& table) {
  std::string with_value;
  std::string with_program;
  std::string commands;
  std::string operands;
  for (const CommandEntry& command : table.commands) {
    for (const OptionEntry& option : command.options) {
      for (const std::string& name : option.names) {
        if (option.takes_value()) with_value += " \\\n    '" + command.name + " " + name + "'";
      }
    }
    if (command.program == ProgramWords::after_options) with_program += " " + command.name;
    commands += "complete -c cupool -n __cupool_begins -a " + command.name + " -d " +
                fish_word(first_sentence(command.description)) + "\n";
    operands += operand_line(command);
  }
  std::string options;
  for (const OptionEntry& option : table.options) {
    options += "complete -c cupool -n __cupool_begins" + option_words(option) + "\n";
  }
  for (const auto& [words, of] : grouped(table)) {
    options += "complete -c cupool -n '__cupool_is " + of + "'" + words + "\n";
  }
  return "# Completion of cupool in fish. Written by `cupool completion fish`.\n"
         "# Options with a value, by command, and the commands that take a program.\n"
         "set -g __cupool_with_value" +
         with_value + "\nset -g __cupool_with_program" + with_program + "\n" + kFishFunctions +
         commands + operands + options;
}

}  // namespace cupool::cli
