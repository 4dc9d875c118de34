// SPDX-License-Identifier: Apache-2.0
// `cupool diff before after`: what changed between two runs, from their reports.
#include <cstdio>
#include <memory>

#include "cli/command.h"
#include "cli/page/difference.h"
#include "cli/shell/output.h"
#include "cli/shell/terminal.h"

namespace cupool::cli {

namespace {

struct DiffArguments {
  std::string before;
  std::string after;
  std::string html;
  bool text = false;
};

int act(const DiffArguments& arguments) {
  const std::vector<Report> before = read_reports({arguments.before});
  const std::vector<Report> after = read_reports({arguments.after});
  if (!arguments.html.empty()) {
    const std::string page = difference_page(before, after);
    tell_written(write_text(arguments.html, page), "both runs");
  }
  if (arguments.html.empty() || arguments.text) {
    std::fputs(difference_text(difference_of(before, after)).c_str(), stdout);
    if (arguments.html.empty()) hint("with --html page.html there is a page with charts of both");
  }
  return exit_ok;
}

}  // namespace

void add_diff(CLI::App& app, Session& session) {
  const auto arguments = std::make_shared<DiffArguments>();
  CLI::App* command =
      add_command(app, session, "diff", "Show what changed between the reports of two runs.",
                  ProgramWords::none, [arguments](Session&) { return act(*arguments); });
  command
      ->add_option("before", arguments->before,
                   "A report (CUPOOL_STATS=json) or a directory of them")
      ->required()
      ->type_name("FILE");
  command->add_option("after", arguments->after, "The other run's report or directory")
      ->required()
      ->type_name("FILE");
  command
      ->add_option("--html", arguments->html,
                   "Write a page with charts to this file (-: standard output)")
      ->check(overwrites_input)
      ->type_name("FILE");
  command->add_flag("--text", arguments->text, "Print the text too, with --html");
  command->footer(
      "Lists settings that differ, and figures that changed by more than noise; of directories,\n"
      "sums over the processes. Exit code 2: a file is not a report, or has a newer schema.");
}

}  // namespace cupool::cli
