// SPDX-License-Identifier: Apache-2.0
// `cupool report file...`: reports in a few sentences and as an HTML page.
#include <cstdio>
#include <memory>

#include "cli/command.h"
#include "cli/page/html.h"
#include "cli/page/leaks.h"
#include "cli/page/story.h"
#include "cli/page/text.h"
#include "cli/shell/output.h"
#include "cli/shell/terminal.h"
#include "cli/site_names.h"
#include "util/text.h"

namespace cupool::cli {

namespace {

struct ReportArguments {
  std::vector<std::string> files;
  std::string html;
  bool text = false;
  bool collapsed = false;
  bool speedscope = false;
  std::string measure = "bytes";
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

// The call sites of one report in the format of another tool.
void write_stacks(const ReportArguments& arguments, const std::vector<Report>& reports) {
  if (reports.size() != 1) {
    throw UsageError("--collapsed and --speedscope take one report, not " +
                     std::to_string(reports.size()));
  }
  const Report& report = reports.front();
  if (report.sites.interval == 0) {
    throw UsageError(report.file + ": no call sites; CUPOOL_SITES=1 records them");
  }
  if (report.sites.sites.empty()) {
    throw UsageError(
        report.file +
        ": no allocation was sampled. CUPOOL_SITES samples memory of cudaMalloc alone, "
        "with 1 one allocation in 512 KiB; CUPOOL_SITES=64K samples more");
  }
  const std::string text = arguments.speedscope
                               ? speedscope_file(report.sites, util::base_name(report.program))
                               : collapsed_stacks(report.sites, arguments.measure);
  std::fputs(text.c_str(), stdout);
}

void name_functions(const ReportArguments& arguments, std::vector<Report>* reports) {
  std::vector<SitesReport*> places;
  const bool shows_sites = reports->size() == 1 || !arguments.html.empty();
  for (Report& report : *reports) {
    if (shows_sites) places.push_back(&report.sites);  // the text of several has no call sites
    places.push_back(&report.leak_places);
  }
  name_sites(places);
  for (Report& report : *reports) name_leaks(&report);
}

int act(const ReportArguments& arguments) {
  bool all = true;
  std::vector<Report> reports = read_readable_reports(arguments.files, &all);
  const int code = all ? exit_ok : exit_usage;
  name_functions(arguments, &reports);
  if (arguments.collapsed || arguments.speedscope) {
    write_stacks(arguments, reports);
    return code;
  }
  if (!arguments.html.empty()) {
    const std::string page = page_of(reports);
    tell_written(write_text(arguments.html, page), processes_in_words(reports.size()));
  }
  if (arguments.html.empty() || arguments.text) {
    std::fputs(story_text(reports).c_str(), stdout);
    const std::string leaks = leaks_text(reports);
    if (!leaks.empty()) std::printf("\n%s", leaks.c_str());
    if (reports.size() == 1 && !reports.front().sites.sites.empty()) {
      std::fputs(("\n" + sites_text(reports.front().sites)).c_str(), stdout);
    }
    if (arguments.html.empty()) {
      hint("cupool report --html page.html " + arguments.files.front() +
           (arguments.files.size() > 1 ? " ..." : "") + " makes an HTML page");
    }
  }
  return code;
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
      ->check(overwrites_input)
      ->type_name("FILE");
  command->add_flag("--text", arguments->text, "Print the text too, with --html");
  CLI::Option* const collapsed = command->add_flag(
      "--collapsed", arguments->collapsed,
      "Print the call sites of CUPOOL_SITES as folded stacks, for flame graph tools");
  command
      ->add_flag("--speedscope", arguments->speedscope,
                 "Print them as a file of speedscope.app, with a profile for each figure")
      ->excludes(collapsed);
  std::vector<std::string> measures;
  for (const SiteMeasure& measure : kSiteMeasures) measures.emplace_back(measure.key);
  command
      ->add_option("--measure", arguments->measure,
                   "What the folded stacks count: bytes, peak_bytes, calls, waited_calls")
      ->check(CLI::IsMember(measures))
      ->needs(collapsed)
      ->type_name("FIGURE");
  command->footer(
      "Several files (ranks of a job, hosts) become one page that compares the processes and\n"
      "names outliers. Exit code 2: a file is not a report, or has a newer schema (the others are\n"
      "shown), or the page cannot be written.");
}

}  // namespace cupool::cli
