// SPDX-License-Identifier: Apache-2.0
// `cupool completion`, `cupool man` and `cupool help`: the command about itself.
#include <cstdio>
#include <memory>

#include "cli/command.h"
#include "cli/reference/completion.h"
#include "cli/reference/man_page.h"
#include "cli/version.h"

namespace cupool::cli {

namespace {

int print_completion(const CLI::App& app, const std::string& shell) {
  const CommandTable table = command_table(app, program_words_of);
  std::string text;
  if (shell == "bash") text = bash_completion(table);
  if (shell == "zsh") text = zsh_completion(table);
  if (shell == "fish") text = fish_completion(table);
  if (text.empty()) throw UsageError("completion takes bash, zsh or fish, not " + shell);
  std::fputs(text.c_str(), stdout);
  return exit_ok;
}

void add_completion(CLI::App& app, Session& session) {
  const auto shell = std::make_shared<std::string>();
  CLI::App* command = add_command(
      app, session, "completion", "Print the completion of cupool for a shell.", ProgramWords::none,
      [&app, shell](Session&) { return print_completion(app, *shell); });
  command->add_option("shell", *shell, "The shell")->required()->type_name("bash|zsh|fish");
  command->footer(
      "bash, zsh: eval \"$(cupool completion bash)\". fish: cupool completion fish | source.");
}

void add_man(CLI::App& app, Session& session) {
  CLI::App* command = add_command(
      app, session, "man", "Print the manual page of cupool.", ProgramWords::none,
      [&app](Session&) {
        const CommandTable table = command_table(app, program_words_of);
        std::fputs(man_page(table, version_date(), "cupool " CUPOOL_VERSION).c_str(), stdout);
        return exit_ok;
      });
  command->footer("To read it: cupool man | man -l -");
}

int explain(const CLI::App& app, const std::string& command) {
  if (command.empty()) return main_of({"--help"});
  for (const CLI::App* known : app.get_subcommands({})) {
    if (known->get_name() == command) return main_of({command, "--help"});
  }
  return main_of({command});  // the error, with the nearest name
}

void add_help(CLI::App& app, Session& session) {
  const auto about = std::make_shared<std::string>();
  CLI::App* command = add_command(app, session, "help", "Explain a command.", ProgramWords::none,
                                  [&app, about](Session&) { return explain(app, *about); });
  command->add_option("command", *about, "The command; none: list all")->type_name("COMMAND");
}

}  // namespace

void add_reference(CLI::App& app, Session& session) {
  add_completion(app, session);
  add_man(app, session);
  add_help(app, session);
}

}  // namespace cupool::cli
