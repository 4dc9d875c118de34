// SPDX-License-Identifier: Apache-2.0
// `cupool report file...`: reports in a few sentences and as an HTML page.
#include <cstdio>
#include <memory>

#include "cli/command.h"
#include "cli/page/html.h"
#include "cli/page/story.h"
#include "cli/page/text.h"
#include "cli/shell/output.h"
#include "cli/shell/terminal.h"
#include "util/text.h"

namespace cupool::cli {

namespace {

struct ReportArguments {
  std::vector<std::string> files;
  std::string html;
  bool text = false;
};

std::string processes_in_words(std::size_t number) {
  return util::format_count(number) + (number == 1 ? " process" : " processes");
}

// A page of a thousand ranks takes seconds.
std::string page_of(const std::vector<Report>& reports) {
  Progress progress;
  if (reports.size() > kMostRowsOfProcesses) {
    progress.show("drawing the page of " + processes_in_words(reports.size()));
  }
  return html_page(reports);
}

int act(const ReportArguments& arguments) {
  const std::vector<Report> reports = read_reports(arguments.files);
  if (!arguments.html.empty()) {
    const std::string page = page_of(reports);
    tell_written(write_text(arguments.html, page), processes_in_words(reports.size()));
  }
  if (arguments.html.empty() || arguments.text) {
    std::fputs(story_text(reports).c_str(), stdout);
    if (arguments.html.empty()) {
      hint("cupool report --html page.html " + arguments.files.front() +
           (arguments.files.size() > 1 ? " ..." : "") + " makes an HTML page");
    }
  }
  return exit_ok;
}

}  // namespace

void add_report(CLI::App& app, Session& session) {
  const auto arguments = std::make_shared<ReportArguments>();
  CLI::App* command = add_command(
      app, session, "report", "Summarise JSON reports of cupool, as text or as an HTML page.",
      ProgramWords::none, [arguments](Session&) { return act(*arguments); });
  command
      ->add_option("files", arguments->files,
                   "Reports, as CUPOOL_STATS=json writes them, or directories of them")
      ->required()
      ->type_name("FILE");
  command
      ->add_option("--html", arguments->html,
                   "Write a page with charts to this file (-: standard output)")
      ->type_name("FILE");
  command->add_flag("--text", arguments->text, "Print the text too, with --html");
  command->footer(
      "Several files (ranks of a job, hosts) become one page that compares the processes and\n"
      "names outliers. Exit code 2: a file is not a report, or has a newer schema, or the page\n"
      "cannot be written.");
}

}  // namespace cupool::cli
