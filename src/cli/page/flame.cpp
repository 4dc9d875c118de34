// SPDX-License-Identifier: Apache-2.0
// Stacks become a tree, the tree rows of rectangles. What is too narrow to be seen is merged with
// its narrow neighbours, so that the page stays small for any number of sites.
#include "cli/page/flame.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "cli/page/sections.h"
#include "cli/page/svg.h"
#include "util/text.h"

namespace cupool::cli {

namespace {

constexpr double kFlameWidth = 1100;
constexpr double kFlameRow = 18;
constexpr double kNarrowest = 2;  // of a rectangle
constexpr std::size_t kMostListed = 100;

struct FlameNode {
  std::uint64_t value = 0;
  std::map<std::string, FlameNode> callees;
};

// As much of a name as fits, cut at a whole character of UTF-8.
std::string fitting(const std::string& name, double width) {
  if (text_width(name) <= width) return name;
  std::size_t length = name.size();
  while (length > 0 && text_width(name.substr(0, length)) + 12 > width) {
    --length;
    while (length > 0 && (static_cast<unsigned char>(name[length]) & 0xc0u) == 0x80) --length;
  }
  return length < 3 ? "" : name.substr(0, length) + "\xe2\x80\xa6";
}

class FlameDrawing {
 public:
  FlameDrawing(const SiteMeasure& measure, std::uint64_t all) : measure_(measure), all_(all) {}

  // What a node calls, below it; the root has no rectangle of its own.
  void draw(const FlameNode& node, double left, std::size_t row) {
    std::uint64_t narrow = 0;
    std::size_t narrow_ones = 0;
    for (const auto& [name, callee] : node.callees) {
      const double width = width_of(callee.value);
      if (width < kNarrowest) {
        narrow += callee.value;
        ++narrow_ones;
        continue;
      }
      rectangle(name, callee.value, left, row);
      draw(callee, left, row + 1);
      left += width;
    }
    if (width_of(narrow) >= kNarrowest) {
      rectangle(util::format_count(narrow_ones) + " more", narrow, left, row);
    }
  }

  std::string html(const std::string& id, const std::string& description) const {
    const double height = static_cast<double>(rows_) * kFlameRow;
    const std::string title = std::string("Flame graph: ") + measure_.title;
    return "<div class=\"chart wide\" tabindex=\"0\"><svg class=\"flame\" "
           "style=\"min-width:760px\" viewBox=\"0 "
           "0 " +
           coordinate(kFlameWidth) + " " + coordinate(height) +
           "\" role=\"img\" aria-labelledby=\"" + id + "-title " + id +
           "-description\">\n<title id=\"" + id + "-title\">" + escape_html(title) +
           "</title>\n<desc id=\"" + id + "-description\">" + escape_html(description) +
           "</desc>\n" + shapes_ + "</svg></div>\n";
  }

 private:
  double width_of(std::uint64_t value) const {
    return kFlameWidth * static_cast<double>(value) / static_cast<double>(all_);
  }

  void rectangle(const std::string& name, std::uint64_t value, double left, std::size_t row) {
    rows_ = std::max(rows_, row + 1);
    const double top = static_cast<double>(row) * kFlameRow;
    const double width = width_of(value);
    const std::string amount =
        measure_.is_bytes ? util::format_bytes(value) : util::format_count(value);
    unsigned shade = 0;
    for (const char c : name) shade = shade * 31 + static_cast<unsigned char>(c);
    shapes_ += "<g><title>" +
               escape_html(name + ": " + amount + ", " + util::format_percent(value, all_)) +
               "</title><rect x=\"" + coordinate(left) + "\" y=\"" + coordinate(top) +
               "\" width=\"" + coordinate(width) + "\" height=\"" + coordinate(kFlameRow) +
               "\" class=\"f" + std::to_string(shade % 3) + "\"/>";
    const std::string label = fitting(name, width - 6);
    if (!label.empty()) {
      shapes_ += "<text x=\"" + coordinate(left + 3) + "\" y=\"" + coordinate(top + 13) + "\">" +
                 escape_html(label) + "</text>";
    }
    shapes_ += "</g>\n";
  }

  const SiteMeasure& measure_;
  const std::uint64_t all_;
  std::size_t rows_ = 0;
  std::string shapes_;
};

std::uint64_t figure_of(const SiteReport& site, const char* key) {
  const auto found = site.figures.find(key);
  return found == site.figures.end() ? 0 : found->second;
}

std::string table_of(const SitesReport& sites) {
  std::vector<std::vector<std::string>> rows = {{"call site", "allocated", "allocations",
                                                 "at the peak", "temporary", "frees that waited",
                                                 "called by"}};
  for (const SiteReport& site : sites.sites) {
    if (rows.size() > kMostListed) break;
    const std::vector<std::string> stack = stack_of(sites, site);
    std::string callers;
    for (std::size_t i = stack.size() - 1; i-- > 0;) {
      callers += (callers.empty() ? "" : ", ") + stack[i];
    }
    rows.push_back({stack.back(), util::format_bytes(figure_of(site, "bytes")),
                    util::format_count(figure_of(site, "calls")),
                    util::format_bytes(figure_of(site, "peak_bytes")),
                    util::format_count(figure_of(site, "temporary_calls")),
                    util::format_count(figure_of(site, "waited_calls")), callers});
  }
  return "<details><summary>The call sites</summary>\n" +
         html_table("Call sites with most allocated bytes, estimated", rows, "words") +
         "</details>\n";
}

}  // namespace

std::string flame_graph(const SitesReport& sites, const SiteMeasure& measure,
                        const std::string& id) {
  FlameNode root;
  std::map<std::string, std::uint64_t> leaves;
  for (const SiteReport& site : sites.sites) {
    const std::uint64_t value = figure_of(site, measure.key);
    if (value == 0) continue;
    leaves[stack_of(sites, site).back()] += value;
    FlameNode* node = &root;
    node->value += value;
    for (const std::string& name : stack_of(sites, site)) {
      node = &node->callees[name];
      node->value += value;
    }
  }
  if (root.value == 0) return "";
  FlameDrawing drawing(measure, root.value);
  drawing.draw(root, 0, 0);
  std::vector<std::pair<std::uint64_t, std::string>> most;
  for (const auto& [name, value] : leaves) most.emplace_back(value, name);
  std::sort(most.rbegin(), most.rend());
  std::string description = "Most in";
  for (std::size_t i = 0; i < std::min<std::size_t>(most.size(), 3); ++i) {
    description += (i == 0 ? " " : ", ") + most[i].second + ": " +
                   util::format_percent(most[i].first, root.value);
  }
  return drawing.html(id, description);
}

std::string sites_html(const SitesReport& sites, const std::string& prefix) {
  std::string html;
  for (std::size_t i = 0; i < 2; ++i) {
    const SiteMeasure& measure = kSiteMeasures[i];
    const std::string graph = flame_graph(sites, measure, prefix + "flame" + std::to_string(i));
    if (graph.empty()) continue;
    html += std::string("<h3>") + (i == 0 ? "Allocated" : "Live at the peak") + "</h3>\n" + graph;
  }
  if (html.empty()) return "";
  return "<p class=\"quiet\">Estimated from one sample in " + prose_html(interval_text(sites)) +
         ". A bar is as wide as its share; what it calls lies below it.</p>\n" + html +
         table_of(sites);
}

}  // namespace cupool::cli
