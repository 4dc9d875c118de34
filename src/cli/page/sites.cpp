// SPDX-License-Identifier: Apache-2.0
// Reads call sites and writes them as text. A name from a program's symbol table may hold anything:
// it must end no line and no frame of a folded stack.
#include "cli/page/sites.h"

#include <algorithm>
#include <cstdio>

#include "cli/page/text.h"
#include "util/text.h"

namespace cupool::cli {

namespace {

constexpr std::size_t kShownSites = 10;
constexpr std::size_t kShownCallers = 3;
constexpr std::size_t kMostFrames = 1024;      // of a site; the library's have 64
constexpr std::size_t kMostSitesRead = 65536;  // the library's reports have 3,072

std::uint64_t figure(const SiteReport& site, const std::string& key) {
  const auto found = site.figures.find(key);
  return found == site.figures.end() ? 0 : found->second;
}

std::uint64_t sum_of(const SitesReport& sites, const std::string& key) {
  std::uint64_t sum = 0;
  for (const SiteReport& site : sites.sites) sum += figure(site, key);
  return sum;
}

std::string folded_name(std::string name) {
  for (char& c : name) {
    if (c == ';' || static_cast<unsigned char>(c) < ' ') c = c == ';' ? ':' : ' ';
  }
  return name;
}

}  // namespace

std::string place_of(const SitesReport& sites, const SiteFrameReport& frame) {
  char offset[32];
  std::snprintf(offset, sizeof offset, "0x%llx", static_cast<unsigned long long>(frame.offset));
  if (frame.module < 0) return offset;
  const std::string& path = sites.modules[static_cast<std::size_t>(frame.module)].path;
  return util::base_name(path) + "+" + offset;
}

SitesReport read_sites(const JsonReader& json) {
  SitesReport read;
  if (!json.has("sites")) return read;
  const JsonReader sites = json.object("sites");
  read.interval = sites.number("interval_bytes");
  read.widest_interval = std::max(read.interval, sites.number("widest_interval_bytes"));
  read.unfollowed = sites.number("unfollowed_samples");
  read.lost = sites.number("lost_samples");
  for (const JsonReader& module : sites.array("modules")) {
    read.modules.push_back({module.text("path"), module.text("build_id")});
  }
  for (const JsonReader& row : sites.array("frames")) {
    SiteFrameReport frame;
    frame.offset = row.number("offset");
    if (row.has("module")) {
      const std::uint64_t module = row.number("module");
      if (module >= read.modules.size()) row.fail("module", "the index of a module");
      frame.module = static_cast<int>(module);
    }
    const std::string function = row.text("function");
    frame.names = {function.empty() ? place_of(read, frame)
                                    : function + " (" + util::base_name(row.text("file")) + ":" +
                                          std::to_string(row.number("line")) + ")"};
    read.frames.push_back(std::move(frame));
  }
  const std::vector<JsonReader> rows = sites.array("sites");
  if (rows.size() > kMostSitesRead) sites.fail("sites", "a list of at most 65,536 call sites");
  for (const JsonReader& row : rows) {
    SiteReport site;
    site.figures = row.own_numbers();
    for (const std::uint64_t frame : row.whole_numbers("frames")) {
      if (frame >= read.frames.size()) row.fail("frames[]", "the index of a frame");
      site.frames.push_back(frame);
    }
    if (site.frames.size() > kMostFrames) row.fail("frames", "a stack of at most 1,024 frames");
    read.sites.push_back(std::move(site));
  }
  if (sites.has("others")) {
    SiteReport others{{}, sites.object("others").own_numbers()};
    if (figure(others, "samples") != 0) read.sites.push_back(std::move(others));
  }
  return read;
}

void merge_sites(SitesReport* sites) {
  std::map<std::vector<std::string>, std::size_t> places;
  std::vector<SiteReport> merged;
  for (SiteReport& site : sites->sites) {
    const auto [place, added] = places.emplace(stack_of(*sites, site), merged.size());
    if (added) {
      merged.push_back(std::move(site));
      continue;
    }
    for (const auto& [key, value] : site.figures) merged[place->second].figures[key] += value;
  }
  const bool has_others = !merged.empty() && merged.back().frames.empty();
  std::stable_sort(merged.begin(), merged.end() - (has_others ? 1 : 0),
                   [](const SiteReport& a, const SiteReport& b) {
                     return figure(a, "bytes") > figure(b, "bytes");
                   });
  sites->sites = std::move(merged);
}

std::vector<std::string> stack_of(const SitesReport& sites, const SiteReport& site) {
  if (site.frames.empty()) return {"other call sites"};
  std::vector<std::string> stack;
  for (std::size_t i = site.frames.size(); i-- > 0;) {
    const std::vector<std::string>& names = sites.frames[site.frames[i]].names;
    stack.insert(stack.end(), names.rbegin(), names.rend());
  }
  return stack;
}

std::string collapsed_stacks(const SitesReport& sites, const std::string& key) {
  std::map<std::string, std::uint64_t> values;  // stacks that differ only by places are one
  for (const SiteReport& site : sites.sites) {
    std::string line;
    for (const std::string& name : stack_of(sites, site)) {
      line += (line.empty() ? "" : ";") + folded_name(name);
    }
    values[line] += figure(site, key);
  }
  std::string text;
  for (const auto& [line, value] : values) {
    if (value != 0) text += line + " " + std::to_string(value) + "\n";
  }
  return text;
}

std::string speedscope_file(const SitesReport& sites, const std::string& name) {
  using Json = nlohmann::ordered_json;
  std::map<std::string, std::size_t> numbers;
  Json frames = Json::array();
  std::vector<Json> stacks;
  for (const SiteReport& site : sites.sites) {
    Json stack = Json::array();
    for (const std::string& function : stack_of(sites, site)) {
      const auto [place, added] = numbers.emplace(function, frames.size());
      if (added) frames.push_back({{"name", function}});
      stack.push_back(place->second);
    }
    stacks.push_back(std::move(stack));
  }
  Json profiles = Json::array();
  for (const SiteMeasure& measure : kSiteMeasures) {
    Json samples = Json::array();
    Json weights = Json::array();
    for (std::size_t i = 0; i < stacks.size(); ++i) {
      const std::uint64_t weight = figure(sites.sites[i], measure.key);
      if (weight == 0) continue;
      samples.push_back(stacks[i]);
      weights.push_back(weight);
    }
    if (samples.empty()) continue;
    profiles.push_back({{"type", "sampled"},
                        {"name", measure.title},
                        {"unit", measure.is_bytes ? "bytes" : "none"},
                        {"startValue", 0},
                        {"endValue", sum_of(sites, measure.key)},
                        {"samples", std::move(samples)},
                        {"weights", std::move(weights)}});
  }
  const Json file = {{"$schema", "https://www.speedscope.app/file-format-schema.json"},
                     {"shared", {{"frames", std::move(frames)}}},
                     {"profiles", std::move(profiles)},
                     {"name", name},
                     {"exporter", "cupool " CUPOOL_VERSION}};
  return file.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string interval_text(const SitesReport& sites) {
  const std::string least = util::format_bytes(sites.interval);
  if (sites.widest_interval == sites.interval) return least;
  return least + " to " + util::format_bytes(sites.widest_interval);
}

std::string sites_text(const SitesReport& sites) {
  if (sites.sites.empty()) return "";
  std::string text =
      "Where memory comes from (estimated from one sample in " + interval_text(sites) + "):\n";
  const std::uint64_t all = sum_of(sites, "bytes");
  const std::uint64_t peak = sum_of(sites, "peak_bytes");
  const std::size_t shown = std::min(sites.sites.size(), kShownSites);
  for (std::size_t i = 0; i < shown; ++i) {
    const SiteReport& site = sites.sites[i];
    text += "  " + util::format_percent(figure(site, "bytes"), all) + ": " +
            util::format_bytes(figure(site, "bytes")) + " in about " +
            util::format_count(figure(site, "calls")) + " allocations";
    if (figure(site, "peak_bytes") != 0) {
      text += ", " + util::format_bytes(figure(site, "peak_bytes")) + " (" +
              util::format_percent(figure(site, "peak_bytes"), peak) + ") at the peak";
    }
    const std::uint64_t calls = figure(site, "calls");
    if (figure(site, "temporary_calls") > calls / 2) text += ", mostly temporary";
    if (figure(site, "waited_calls") > calls / 100) {
      text += ", " +
              util::format_percent(figure(site, "waited_calls"), figure(site, "freed_calls")) +
              " of its frees waited";
    }
    text += "\n";
    const std::vector<std::string> stack = stack_of(sites, site);
    std::string callers;
    for (std::size_t at = 0; at < std::min(stack.size(), kShownCallers + 1); ++at) {
      callers += (at == 0 ? "    " : " < ") + printable_text(stack[stack.size() - 1 - at]);
    }
    text += callers + "\n";
  }
  if (shown < sites.sites.size()) {
    text += "  and " + util::format_count(sites.sites.size() - shown) +
            " more; --collapsed and --speedscope give all\n";
  }
  if (sites.sites.back().frames.empty()) {
    text += "  \"" + stack_of(sites, sites.sites.back()).front() +
            "\" are those beyond the table's size, and stacks without a known frame.\n";
  }
  if (sites.unfollowed != 0) {
    text += "  " + util::format_count(sites.unfollowed) +
            " samples were not followed, too many were live: figures of live memory and of frees "
            "are too low.\n";
  }
  if (sites.lost != 0) {
    text += "  " + util::format_count(sites.lost) +
            " allocations and frees could not be noted: figures are a little too low, those of "
            "live memory too low or too high.\n";
  }
  return text;
}

}  // namespace cupool::cli
