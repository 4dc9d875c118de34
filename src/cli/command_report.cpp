// `cupool report file...`: what reports say, in a few sentences and as a page.
#include <cstdio>
#include <memory>

#include "cli/command.h"
#include "cli/files.h"
#include "cli/report_html.h"
#include "cli/report_text.h"
#include "cli/terminal.h"

namespace cupool::cli {

namespace {

struct ReportArguments {
  std::vector<std::string> files;
  std::string html;
  bool text = false;
};

int act(const ReportArguments& arguments) {
  const std::vector<Report> reports = read_reports(arguments.files);
  if (!arguments.html.empty()) {
    if (!write_text(arguments.html, html_page(reports))) return exit_negative;
  }
  if (arguments.html.empty() || arguments.text) {
    std::fputs(story_text(reports).c_str(), stdout);
    if (arguments.html.empty()) {
      hint("cupool report --html page.html " + arguments.files.front() +
           (arguments.files.size() > 1 ? " ..." : "") + " makes a page of it");
    }
  }
  return exit_ok;
}

}  // namespace

void add_report(CLI::App& app, Session& session) {
  const auto arguments = std::make_shared<ReportArguments>();
  CLI::App* command =
      add_command(app, session, "report", "Say what JSON reports of cupool tell.",
                  ProgramWords::none, [arguments](Session&) { return act(*arguments); });
  command->add_option("files", arguments->files, "Reports, as CUPOOL_STATS=json writes them")
      ->required()
      ->type_name("FILE");
  command
      ->add_option("--html", arguments->html, "Write a page with charts to this file (-: output)")
      ->type_name("FILE");
  command->add_flag("--text", arguments->text, "Print the text as well where --html is given");
  command->footer(
      "Several files (ranks of a job, hosts) become one page with the processes side by side and\n"
      "the outliers named. A file that is no report, or of a newer schema, ends it with 2.");
}

}  // namespace cupool::cli
