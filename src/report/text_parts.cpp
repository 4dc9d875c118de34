// SPDX-License-Identifier: Apache-2.0
// Lines of the text reports.
#include "report/text_parts.h"

#include <algorithm>
#include <cstdio>

#include "util/text.h"

namespace cupool::report {

using util::format_bytes;
using util::format_count;
using util::format_duration_ns;

namespace {

constexpr std::size_t kLabelWidth = 34;

void add_title(Page& page, const stats::Snapshot& snapshot) {
  const stats::ProcessInfo& process = snapshot.process;
  const std::string& program = process.program_path.empty() ? process.argv0 : process.program_path;
  std::string who = one_line(program) + ", process " + std::to_string(snapshot.pid) + " on " +
                    one_line(process.host);
  if (!process.rank.empty()) who += ", rank " + one_line(process.rank);
  who += ", ran " + format_duration_ns(ran_ns_of(snapshot));
  if (snapshot.number != 0) {
    who += "; snapshot " + std::to_string(snapshot.number) + " of the running process";
  }
  // One line however long the path: scripts look for ", rank 0," in the reports of a job.
  page.line("cupool " + process.library_version + ": " + who);
}

std::string frame_text(const stats::LeakFrame& frame) {
  char offset[32];
  std::snprintf(offset, sizeof offset, "+0x%llx", static_cast<unsigned long long>(frame.offset));
  std::string text = one_line(frame.module) + offset;
  if (!frame.symbol.empty()) text += " " + one_line(frame.symbol);
  return text;
}

// Device memory needs no word: it is what a reader expects.
std::string place_of(const stats::LeakSite& site) {
  if (site.kind == "page_locked") return " of page-locked memory";
  const std::string device = " on device " + std::to_string(site.device);
  if (site.kind == "managed") return " of managed memory" + device;
  return (site.kind == "stream_ordered" ? " of cudaMallocAsync" : "") + device;
}

}  // namespace

void Page::row(const std::string& label, const std::vector<std::string>& cells,
               std::size_t first_width, std::size_t width) {
  std::string text = "  " + label;
  std::size_t end = 2 + kLabelWidth;
  bool first = true;
  for (const std::string& cell : cells) {
    end += first ? first_width : width;
    first = false;
    if (cell.empty()) continue;
    // A cell that is too wide shifts the row, and does not overlap its neighbour.
    const std::size_t used = text.size() + cell.size();
    text.append(used < end ? end - used : 1, ' ');
    text += cell;
  }
  line(text);
}

std::string signed_text(std::int64_t value, std::string (*format)(std::uint64_t)) {
  const auto magnitude = static_cast<std::uint64_t>(value);
  return value < 0 ? "-" + format(std::uint64_t{0} - magnitude) : format(magnitude);
}

std::string one_line(const std::string& text) {
  return util::printable(text);
}

std::uint64_t ran_ns_of(const stats::Snapshot& snapshot) {
  return snapshot.end_wall_ns - std::min(snapshot.process.start_wall_ns, snapshot.end_wall_ns);
}

Verdict add_verdict(Page& page, const stats::Snapshot& snapshot) {
  add_title(page, snapshot);
  const Verdict verdict = verdict_of(snapshot);
  page.text(verdict_lines(verdict, "  "));
  return verdict;
}

void add_leaks(Page& page, const stats::Leaks& leaks, bool at_exit) {
  constexpr std::size_t kMostSites = 10;
  if (leaks.one_in == 0) return;
  page.blank();
  std::string title = at_exit ? "Never freed, by call site" : "Live now, by call site";
  if (leaks.one_in > 1) {
    title += " (estimated: one allocation in " + format_count(leaks.one_in) + " was sampled)";
  }
  page.line(title + (leaks.sites.empty() ? ": nothing" : ""));
  for (std::size_t i = 0; i < leaks.sites.size() && i < kMostSites; ++i) {
    const stats::LeakSite& site = leaks.sites[i];
    page.line("  " + format_bytes(site.bytes) + " in " + format_count(site.blocks) +
              (site.blocks == 1 ? " block" : " blocks") + place_of(site));
    for (const stats::LeakFrame& frame : site.frames) page.line("    " + frame_text(frame));
    if (site.frames.empty()) page.line("    other call sites, counted together");
  }
  if (leaks.sites.size() > kMostSites) {
    page.line("  and " + format_count(leaks.sites.size() - kMostSites) +
              " more call sites: the JSON report has them");
  }
}

}  // namespace cupool::report
