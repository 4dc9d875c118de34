// SPDX-License-Identifier: Apache-2.0
// The program's words are cut off before CLI11 parses the rest, since their options are not ours.
#include "cli/command.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "cli/shell/options_text.h"
#include "cli/shell/program_word.h"
#include "cli/shell/settings_arguments.h"
#include "cli/shell/shell_words.h"
#include "cli/shell/suggestion.h"
#include "cli/version.h"
#include "util/text.h"

namespace cupool::cli {

namespace {

// Sub-commands by name, with the place of the program's words.
std::map<std::string, ProgramWords>& program_words() {
  static auto* const words = new std::map<std::string, ProgramWords>;
  return *words;
}

bool is_option(const std::string& word) {
  return word.size() > 1 && word[0] == '-';
}

// Whether the next word is the option's value.
bool takes_next_word(const CLI::App& command, const std::string& option) {
  if (option.find('=') != std::string::npos) return false;
  const CLI::Option* found = command.get_option_no_throw(option);
  return found != nullptr && found->get_items_expected_max() > 0;
}

// The index from `first` on at which the program's words begin, or the number of arguments.
std::size_t program_begin(const CLI::App& command, ProgramWords words,
                          const std::vector<std::string>& arguments, std::size_t first) {
  std::size_t i = first;
  while (i < arguments.size() && arguments[i] != "--") {
    if (words == ProgramWords::after_options && !is_option(arguments[i])) break;
    if (words == ProgramWords::after_files && is_program_word(arguments[i])) break;
    i += is_option(arguments[i]) && takes_next_word(command, arguments[i]) ? 2 : 1;
  }
  return std::min(i, arguments.size());
}

// Moves the program's words from the arguments to the session.
void cut_program(const CLI::App& app, std::vector<std::string>* arguments, Session* session) {
  if (arguments->empty()) return;
  const ProgramWords words = program_words_of(arguments->front());
  if (words == ProgramWords::none) return;
  const CLI::App& command = *app.get_subcommand(arguments->front());
  const std::size_t begin = program_begin(command, words, *arguments, 1);
  const bool dashes = begin < arguments->size() && (*arguments)[begin] == "--";
  const auto at = arguments->begin() + static_cast<std::ptrdiff_t>(begin);
  session->program.assign(at + (dashes ? 1 : 0), arguments->end());
  arguments->erase(at, arguments->end());
}

// Of a setting that the sub-command does not take; else "".
std::string decided_setting(const CLI::App& command, const std::string& option) {
  const config::Row* const row = util::starts_with(option, "--") ? find_row(option) : nullptr;
  const bool takes_settings = command.get_option_no_throw("--set") != nullptr;
  return row == nullptr || !takes_settings ? "" : decided_text(command.get_name(), row->name);
}

// A message about the first unknown argument, with the nearest known one; "" if all are known.
std::string unknown_argument(const CLI::App& app, const std::vector<std::string>& arguments) {
  std::vector<std::string> names;
  if (arguments.empty()) return "";
  const CLI::App* command = &app;
  std::size_t first = 0;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(sub->get_name());
    if (sub->get_name() != arguments[0]) continue;
    command = sub;
    first = 1;
  }
  if (first == 1) names.clear();
  for (const CLI::Option* option : command->get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  for (std::size_t i = first; i < arguments.size(); ++i) {
    const std::string word = arguments[i].substr(0, arguments[i].find('='));
    if (first == 1 && !is_option(word)) continue;
    if (is_option(word) && command->get_option_no_throw(word) != nullptr) {
      if (takes_next_word(*command, arguments[i])) ++i;
      continue;
    }
    // `cupool options --free-mode`: its operand is written as other commands take it.
    if (command->get_name() == "options" && is_option(word) &&
        find_row(word.substr(2)) != nullptr) {
      return "cupool options has no option " + word + ". Did you mean cupool options " +
             word.substr(2) + "?";
    }
    const std::string decided = decided_setting(*command, word);
    if (!decided.empty()) return decided;
    if (!is_option(word) && word.find('/') != std::string::npos) {
      return "cupool has no command " + word + ". To start a program: cupool run " +
             shell_words({word});
    }
    if (!is_option(word) && find_row(word) != nullptr) {
      return "cupool has no command " + word + ". It is a setting: cupool options " + word;
    }
    const std::string whose = first == 1 ? "cupool " + command->get_name() : "cupool";
    return whose + " has no " + std::string(is_option(word) ? "option " : "command ") + word +
           (first == 0 && is_option(word) ? " before a command" : "") + did_you_mean(word, names);
  }
  return "";
}

// Adds the program's words, of which CLI11 does not know, to the usage line, and orders the help of
// a command.
class Formatter : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override {
    if (app->get_parent() == nullptr) return CLI::Formatter::make_help(app, name, mode);
    // How to use it stands before thirty options. A footer that is inherited is not about it.
    const std::string footer = app->get_footer();
    const bool own = !footer.empty() && footer != app->get_parent()->get_footer();
    return make_description(app) + make_usage(app, std::move(name)) +
           (own ? "\n" + footer + "\n" : "") + make_positionals(app) + groups_of(app, mode);
  }

  // Thirty settings would hide the options of the command itself.
  std::string groups_of(const CLI::App* app, CLI::AppFormatMode mode) const {
    if (mode == CLI::AppFormatMode::All || app->get_help_all_ptr() == nullptr) {
      return make_groups(app, mode);
    }
    std::string text;
    for (const std::string& group : app->get_groups()) {
      const bool setting = group.rfind("Settings: ", 0) == 0;
      const auto shown = app->get_options([&group](const CLI::Option* option) {
        return option->get_group() == group && option->nonpositional();
      });
      if (!setting && !group.empty() && !shown.empty()) text += make_group(group, false, shown);
    }
    return text + "\nSettings of the library are options, too (--free-mode VALUE, ...): cupool " +
           app->get_name() + " --help-all\n";
  }

  std::string make_usage(const CLI::App* app, std::string name) const override {
    const ProgramWords words = program_words_of(app->get_name());
    if (words == ProgramWords::none) return CLI::Formatter::make_usage(app, name);
    const std::string program = " [OPTIONS] [--] PROGRAM [ARGUMENTS...]\n";
    const bool files = words == ProgramWords::after_files;
    return "Usage: " + name + (files ? " [OPTIONS] FILE...\n   or: " + name : "") + program;
  }
};

void print_error(const std::string& text) {
  std::fprintf(stderr, "cupool: %s\n", util::printable(text, true).c_str());
}

// The sub-command's operand that is missing, with its meaning; "" if none is.
std::string missing_operand(const CLI::App& app, const std::vector<std::string>& arguments) {
  for (const CLI::App* command : app.get_subcommands({})) {
    if (command->get_name() != arguments.front()) continue;
    for (const CLI::Option* option : command->get_options()) {
      if (!option->get_required() || option->count() > 0) continue;
      return "cupool " + command->get_name() + " needs " + option->get_type_name() + ": " +
             option->get_description();
    }
  }
  return "";
}

int usage_error(const CLI::App& app, const std::vector<std::string>& arguments,
                const CLI::ParseError& error) {
  const std::string unknown = unknown_argument(app, arguments);
  const bool lacks = unknown.empty() && !arguments.empty() &&
                     error.get_exit_code() == static_cast<int>(CLI::ExitCodes::RequiredError);
  const std::string missing = lacks ? missing_operand(app, arguments) : "";
  print_error(!unknown.empty() ? unknown : !missing.empty() ? missing : error.what());
  const bool known = !arguments.empty() && program_words().count(arguments[0]) != 0;
  std::fprintf(stderr, "See: cupool %s--help\n", known ? (arguments[0] + " ").c_str() : "");
  return exit_usage;
}

}  // namespace

CLI::App* add_command(CLI::App& app, Session& session, const std::string& name,
                      const std::string& description, ProgramWords words,
                      std::function<int(Session&)> act) {
  program_words()[name] = words;
  CLI::App* command = app.add_subcommand(name, description);
  command->group("Commands");
  command->callback([&session, act = std::move(act)] { session.exit_code = act(session); });
  return command;
}

ProgramWords program_words_of(const std::string& name) {
  const auto words = program_words().find(name);
  return words == program_words().end() ? ProgramWords::none : words->second;
}

int main_of(const std::vector<std::string>& arguments) {
  Session session;
  CLI::App app(
      "Runs CUDA programs with cudaMalloc and cudaFree served from stream-ordered memory pools.",
      "cupool");
  const auto formatter = std::make_shared<Formatter>();
  formatter->label("SUBCOMMAND", "COMMAND");
  app.formatter(formatter);
  app.set_version_flag("-V,--version", version_text());
  app.require_subcommand(1);
  app.footer("`cupool COMMAND --help` explains a command.");
  add_run(app, session);
  add_env(app, session);
  add_doctor(app, session);
  add_options(app, session);
  add_observe(app, session);
  add_compare(app, session);
  add_top(app, session);
  add_replay(app, session);
  add_report(app, session);
  add_diff(app, session);
  add_tune(app, session);
  add_reference(app, session);
  // Without a command: which there are.
  std::vector<std::string> own = arguments.empty() ? std::vector<std::string>{"--help"} : arguments;
  cut_program(app, &own, &session);
  try {
    app.parse(std::vector<std::string>(own.rbegin(), own.rend()));
  } catch (const CLI::Success& success) {
    app.exit(success);  // --help and --version
    session.exit_code = exit_ok;
  } catch (const CLI::ParseError& error) {
    return usage_error(app, own, error);
  } catch (const UsageError& error) {
    print_error(error.what());
    return exit_usage;
  }
  // A closed pipe or a full disk is a failure. ferror() reports one that an earlier write met, when
  // nothing is left to flush.
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (!written) {
    std::perror("cupool: cannot write");
    std::clearerr(stdout);  // `help` is a command within a command: told once
    if (session.exit_code == exit_ok) return exit_usage;
  }
  return session.exit_code;
}

}  // namespace cupool::cli
