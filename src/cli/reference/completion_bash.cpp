// SPDX-License-Identifier: Apache-2.0
// bash splits words at '=' too: `--stats=json` arrives as three words.
#include <map>
#include <set>

#include "cli/reference/completion.h"

namespace cupool::cli {

namespace {

// What follows an option or stands alone, as the script's functions know it: words, and @file,
// @program or @any.
std::string kind_of(const OptionEntry& entry) {
  std::string kind;
  for (const std::string& word : entry.choices) kind += (kind.empty() ? "" : " ") + word;
  if (entry.takes_file) kind += kind.empty() ? "@file" : " @file";
  return kind.empty() ? "@any" : kind;
}

std::string names_of(const std::vector<OptionEntry>& options) {
  std::string names;
  for (const OptionEntry& option : options) {
    for (const std::string& name : option.names) names += (names.empty() ? "" : " ") + name;
  }
  return names;
}

std::string case_line(const std::string& pattern, const std::string& words) {
  return "    " + pattern + ") echo '" + words + "' ;;\n";
}

// Cases of "command option". An option that is alike in all its commands has one line.
std::string value_cases(const CommandTable& table) {
  std::map<std::string, std::map<std::string, std::string>> kinds;  // option, command: kind
  for (const CommandEntry& command : table.commands) {
    for (const OptionEntry& option : command.options) {
      for (const std::string& name : option.names) {
        kinds[name][command.name] = option.takes_value() ? kind_of(option) : "";
      }
    }
  }
  std::string cases;
  for (const auto& [name, by_command] : kinds) {
    std::set<std::string> different;
    for (const auto& [command, kind] : by_command) different.insert(kind);
    if (different.size() == 1 && *different.begin() != "") {
      cases += case_line("*' " + name + "'", *different.begin());
    } else if (different.size() > 1) {
      for (const auto& [command, kind] : by_command) {
        if (!kind.empty()) cases += case_line("'" + command + " " + name + "'", kind);
      }
    }
  }
  return cases;
}

std::string operand_of(const CommandEntry& command) {
  if (command.program == ProgramWords::after_options) return "@program";
  return command.operands.empty() ? "@any" : kind_of(command.operands.front());
}

constexpr const char* kBashFunctions = R"bash(
# Candidates for the word $2: words, files for @file.
_cupool_reply() {
  mapfile -t COMPREPLY < <(compgen -W "${1//@[a-z]*/}" -- "$2")
  case $1 in
    *@file)
      compopt -o filenames 2> /dev/null
      mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -f -- "$2") ;;
    *=*) compopt -o nospace 2> /dev/null ;;
  esac
}

# The program's words begin at word $1: its own completion, if there is a way to it.
_cupool_program() {
  local offset
  for offset in _comp_command_offset _command_offset; do
    if declare -F "$offset" > /dev/null; then
      "$offset" "$1"
      return
    fi
  done
  compopt -o filenames 2> /dev/null
  if ((COMP_CWORD == $1)); then
    mapfile -t COMPREPLY < <(compgen -c -- "${COMP_WORDS[COMP_CWORD]}"; compgen -f -- "${COMP_WORDS[COMP_CWORD]}")
  else
    mapfile -t COMPREPLY < <(compgen -f -- "${COMP_WORDS[COMP_CWORD]}")
  fi
}

_cupool() {
  local current=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]} at=2 word value
  COMPREPLY=()
  if ((COMP_CWORD == 1)); then
    _cupool_reply "$(_cupool_options '')" "$current"
    return
  fi
  while ((at < COMP_CWORD)); do
    word=${COMP_WORDS[at]}
    if [[ $word == -- && $(_cupool_dashes "$command") ]]; then
      _cupool_program $((at + 1))
      return
    elif [[ $word == -?* ]]; then
      ((++at))
      value=$(_cupool_value "$command" "$word")
      [[ $value && $word != *=* ]] || continue
      if [[ ${COMP_WORDS[at]} == = ]]; then
        ((at == COMP_CWORD)) && current=
        ((++at))
      fi
      if ((at >= COMP_CWORD)); then
        _cupool_reply "$value" "$current"
        return
      fi
      ((++at))
      while ((at <= COMP_CWORD)) && [[ ${COMP_WORDS[at]} == = ]]; do ((at += 2)); done
      # The value of NAME=VALUE.
      ((at > COMP_CWORD)) && return
    elif [[ $(_cupool_operand "$command") == @program ]]; then
      _cupool_program "$at"
      return
    else
      ((++at))
    fi
  done
  if [[ $current == -* ]]; then
    _cupool_reply "$(_cupool_options "$command")" "$current"
  elif [[ $(_cupool_operand "$command") == @program ]]; then
    _cupool_program "$COMP_CWORD"
  else
    _cupool_reply "$(_cupool_operand "$command")" "$current"
  fi
}

complete -F _cupool cupool
)bash";

}  // namespace

std::string bash_completion(const CommandTable& table) {
  std::string words;
  std::string options;
  std::string operands;
  std::string dashes;
  for (const CommandEntry& command : table.commands) {
    words += command.name + " ";
    options += case_line(command.name, names_of(command.options));
    operands += case_line(command.name, operand_of(command));
    if (command.program != ProgramWords::none) dashes += case_line(command.name, "yes");
  }
  return "# Completion of cupool in bash. Written by `cupool completion bash`.\n"
         "# Options of a command; of none, the commands.\n_cupool_options() {\n  case $1 in\n" +
         case_line("''", words + names_of(table.options)) + options +
         "  esac\n}\n\n# What an option takes; nothing for a flag.\n_cupool_value() {\n"
         "  case \"$1 $2\" in\n" +
         value_cases(table) +
         "  esac\n}\n\n# What a command takes beside options.\n_cupool_operand() {\n  case $1 "
         "in\n" +
         operands +
         "  esac\n}\n\n# Whether a program may follow `--`.\n_cupool_dashes() {\n  case $1 in\n" +
         dashes + "  esac\n}\n" + kBashFunctions;
}

}  // namespace cupool::cli
