// SPDX-License-Identifier: Apache-2.0
// One _arguments call for each command. Local names must not be those of zsh (commands, options).
#include "cli/reference/completion.h"
#include "cli/shell/shell_words.h"

namespace cupool::cli {

namespace {

// What completes a value, as an action of _arguments.
std::string action_of(const OptionEntry& entry) {
  std::string words;
  for (const std::string& word : entry.choices) words += " " + word;
  if (entry.takes_file) return words.empty() ? "_files" : " _cupool_words_or_files" + words;
  if (words.empty()) return " ";
  return words.back() == '=' ? " compadd -S \"\" --" + words : "(" + words.substr(1) + ")";
}

std::string message_of(const OptionEntry& entry) {
  return ":" + escaped(entry.choices.empty() ? entry.value : "value", ":", "\\") + ":" +
         action_of(entry);
}

// '(-n --runs)'{-n+,--runs=}'[description]:N: '
std::string specification(const OptionEntry& option) {
  std::string all;
  std::string forms;
  for (const std::string& name : option.names) {
    const bool is_long = name.compare(0, 2, "--") == 0;
    all += (all.empty() ? "" : " ") + name;
    forms += (forms.empty() ? "" : ",") + name;
    if (option.takes_value()) forms += is_long ? "=" : "+";
  }
  const std::string excluded = option.repeated ? "'*'" : shell_word("(" + all + ")");
  const std::string text = "[" + escaped(first_sentence(option.description), "[]\\", "\\") + "]";
  return excluded + (option.names.size() > 1 ? "{" + forms + "}" : forms) +
         shell_word(text + (option.takes_value() ? message_of(option) : ""));
}

std::string arguments_of(const CommandEntry& command) {
  std::string words = "_arguments -S";
  for (const OptionEntry& option : command.options) {
    words += " \\\n            " + specification(option);
  }
  for (const OptionEntry& operand : command.operands) {
    words += " \\\n            " + shell_word((operand.repeated ? "*" : "1") + message_of(operand));
  }
  if (command.program == ProgramWords::after_options) {
    words += " \\\n            '(-)1:program: _command_names -e' '*::argument: _normal'";
  }
  return words;
}

}  // namespace

std::string zsh_completion(const CommandTable& table) {
  std::string names;
  std::string cases;
  for (const CommandEntry& command : table.commands) {
    names +=
        "        " + shell_word(command.name + ":" + first_sentence(command.description)) + "\n";
    cases +=
        "        " + command.name + ")\n          " + arguments_of(command) + " && result=0 ;;\n";
  }
  std::string options;
  for (const OptionEntry& option : table.options) options += " \\\n    " + specification(option);
  return "#compdef cupool\n"
         "# Completion of cupool in zsh. Written by `cupool completion zsh`.\n"
         "_cupool_words_or_files() {\n"
         "  _alternative \"words:word:($*)\" 'files:file:_files'\n}\n\n"
         "_cupool() {\n"
         "  local curcontext=$curcontext state line result=1\n"
         "  local -a entries\n"
         "  typeset -A opt_args\n"
         "  _arguments -C" +
         options +
         " \\\n    '1:command:->command' '*::argument:->arguments' && result=0\n"
         "  case $state in\n"
         "    command)\n"
         "      entries=(\n" +
         names +
         "      )\n"
         "      _describe -t commands command entries && result=0 ;;\n"
         "    arguments)\n"
         "      curcontext=\"${curcontext%:*}-$words[1]:\"\n"
         "      case $words[1] in\n" +
         cases +
         "      esac ;;\n"
         "  esac\n"
         "  return result\n"
         "}\n\n"
         "# Read as a file of $fpath, or by `eval`.\n"
         "if [[ $funcstack[1] == _cupool ]]; then\n"
         "  _cupool \"$@\"\n"
         "else\n"
         "  compdef _cupool cupool\n"
         "fi\n";
}

}  // namespace cupool::cli
