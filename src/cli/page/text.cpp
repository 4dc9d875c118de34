// SPDX-License-Identifier: Apache-2.0
// Layout only; the sentences come from story.h.
#include "cli/page/text.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "cli/page/leaks.h"
#include "cli/page/story.h"
#include "util/text.h"

namespace cupool::cli {

namespace {

std::string printable_lines(const std::string& text) {
  return util::printable(text, true);
}

void add_reports(const std::vector<Report>& reports, std::string* text) {
  if (reports.size() > kMostRowsOfProcesses) {
    *text += util::format_count(reports.size()) + " reports, from " +
             printable_text(reports.front().file + " (" + name_of(reports.front(), true)) +
             ") to " + printable_text(reports.back().file + " (" + name_of(reports.back(), true)) +
             ")\n";
    return;
  }
  for (const Report& report : reports) {
    *text += printable_text(report.file + ": " + report.program + ", " + name_of(report, true)) +
             ", ran " + util::format_duration_ns(report.ran_ns()) + "\n";
  }
}

void add_suggestions(const std::vector<Report>& reports, std::string* text) {
  if (reports.size() != 1 || reports[0].suggested.empty()) return;
  *text += "Suggested from this run's peak:";
  for (const auto& [name, value] : reports[0].suggested) {
    text->append(" ").append(printable_text(name)).append("=").append(printable_text(value));
  }
  *text += "\n";
}

constexpr std::size_t kLongestCallers = 200;  // bytes
constexpr std::size_t kLeakSites = 10;
constexpr std::size_t kUncheckedFiles = 3;

// Why there are places without a name.
std::string unchecked_text(const std::vector<Report>& reports) {
  const std::vector<std::string> files = unchecked_files(reports);
  if (files.empty()) return "";
  std::string text = "Not checked for names, since the report has no build id of it: ";
  for (std::size_t i = 0; i < std::min(files.size(), kUncheckedFiles); ++i) {
    text += (i == 0 ? "" : ", ") + printable_text(files[i]);
  }
  if (files.size() > kUncheckedFiles) {
    text += " and " + util::format_count(files.size() - kUncheckedFiles) + " more";
  }
  return text + "\n";
}

}  // namespace

std::string leaks_text(const std::vector<Report>& reports) {
  using Site = std::tuple<std::string, std::string, std::string>;  // kind, site, callers
  std::map<Site, std::pair<std::uint64_t, std::uint64_t>> sites;   // bytes, blocks
  std::uint64_t one_in = 1;
  for (const Report& report : reports) {
    for (const LeakReport& leak : report.leaks) {
      auto& [bytes, blocks] = sites[{leak.kind, leak.site, leak.callers}];
      bytes += leak.bytes;
      blocks += leak.blocks;
      one_in = std::max(one_in, report.leaks_sampled_one_in);
    }
  }
  if (sites.empty()) return "";
  std::vector<std::pair<std::uint64_t, Site>> order;
  for (const auto& [site, figures] : sites) order.emplace_back(figures.first, site);
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string text = "Never freed, by call site";
  if (one_in > 1) {
    text += " (estimated: one allocation in " + util::format_count(one_in) + " was sampled)";
  }
  text += ":\n";
  for (std::size_t i = 0; i < order.size() && i < kLeakSites; ++i) {
    const auto& [kind, site, callers] = order[i].second;
    const std::uint64_t blocks = sites[order[i].second].second;
    text +=
        "  " + util::format_bytes(order[i].first) + " in " + util::format_count(blocks) +
        (blocks == 1 ? " block" : " blocks") +
        (kind == "device" ? "" : " of " + printable_text(kind) + " memory") + "\n    " +
        printable_text(site + (callers.empty() ? "" : ", " + callers.substr(0, kLongestCallers))) +
        "\n";
  }
  if (order.size() > kLeakSites) {
    text += "  and " + util::format_count(order.size() - kLeakSites) + " more call sites\n";
  }
  return text + unchecked_text(reports) +
         "addr2line -Cfpe FILE OFFSET names a place that has no name here.\n";
}

std::string printable_text(const std::string& text) {
  return util::printable(text);
}

std::string text_table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()), 0);
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line = "  ";
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string blanks(widths[i] - row[i].size(), ' ');
      line += i == 0 ? row[i] + blanks : "  " + blanks + row[i];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string story_text(const std::vector<Report>& reports) {
  const Story story = tell(reports);
  std::string text = printable_text(story.headline);
  text += story.headline.back() == '.' ? "\n\n" : ".\n\n";
  if (!story.verdict.time.empty()) {
    text = printable_lines(report::verdict_lines(story.verdict, "")) + "\n";
  }
  for (const std::string& sentence : story.sentences) text += printable_text(sentence) + "\n";
  if (!story.troubles.empty()) {
    text += "\nWorth a look:\n";
    for (const std::string& trouble : story.troubles) text += "- " + printable_text(trouble) + "\n";
  }
  if (reports.size() > 1) {
    const std::vector<Comparison> columns = compare_processes(reports);
    std::vector<std::vector<std::string>> rows = {{"process"}};
    for (const Comparison& column : columns) rows[0].push_back(column.name);
    const std::vector<std::size_t> listed = processes_with_rows(columns);
    const std::vector<std::string> names = names_in_tables(reports);
    for (const std::size_t i : listed) {
      rows.push_back({printable_text(names[i])});
      for (const Comparison& column : columns) {
        rows.back().push_back((column.is_outlier[i] ? "* " : "") + column.texts[i]);
      }
    }
    if (listed.size() < reports.size()) {
      rows.push_back({"of all " + util::format_count(reports.size()) + " processes"});
      for (const DistributionRow& row : distribution_of(columns)) {
        rows.push_back({"  " + row.name});
        rows.back().insert(rows.back().end(), row.texts.begin(), row.texts.end());
      }
    }
    text += "\n" + text_table(rows);
    const std::vector<std::string> outliers = name_outliers(reports, columns);
    text += outliers.empty() ? "No outliers.\n" : "Outliers:\n";
    for (const std::string& outlier : outliers) text += "- " + printable_text(outlier) + "\n";
    text += std::string(kOutlierRule) + "\n";
  }
  text += "\n";
  add_suggestions(reports, &text);
  add_reports(reports, &text);
  return text;
}

}  // namespace cupool::cli
