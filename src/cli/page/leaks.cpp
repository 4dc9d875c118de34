// SPDX-License-Identifier: Apache-2.0
// The report names exported functions only. A report of an earlier version has no list of modules:
// each path that its frames name is one then, without a build id.
#include "cli/page/leaks.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace cupool::cli {

namespace {

// Reports of earlier versions have device memory alone, and do not say so.
std::string memory_kind(std::string name) {
  if (name.empty()) return "device";
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

using ModulesByPath = std::map<std::string, int>;

int module_of(const JsonReader& frame, ModulesByPath* by_path, SitesReport* places) {
  if (frame.has("module_index")) {
    const std::uint64_t index = frame.number("module_index");
    if (index >= places->modules.size()) frame.fail("module_index", "the index of a module");
    return static_cast<int>(index);
  }
  const std::string path = frame.text("module");
  if (path.empty()) return -1;
  const auto [place, added] = by_path->emplace(path, static_cast<int>(places->modules.size()));
  if (added) places->modules.push_back({path, ""});
  return place->second;
}

std::size_t read_frame(const JsonReader& json, ModulesByPath* by_path, SitesReport* places) {
  SiteFrameReport frame;
  frame.module = module_of(json, by_path, places);
  frame.offset = json.number("offset");
  const std::string symbol = json.text("symbol");
  frame.names = {symbol.empty() ? place_of(*places, frame) : symbol};
  places->frames.push_back(std::move(frame));
  return places->frames.size() - 1;
}

// "leak (a.so+0xff)"; functions that are inlined there come first.
std::string in_words(const SitesReport& places, const SiteFrameReport& frame) {
  const std::string place = place_of(places, frame);
  if (frame.names.front() == place) return place;
  std::string names;
  for (const std::string& name : frame.names) names += (names.empty() ? "" : ", ") + name;
  return names + " (" + place + ")";
}

}  // namespace

void read_leaks(const JsonReader& json, Report* report) {
  if (!json.has("leaks")) return;
  const JsonReader leaks = json.object("leaks");
  SitesReport* const places = &report->leak_places;
  ModulesByPath by_path;
  report->leaks_sampled_one_in = std::max<std::uint64_t>(leaks.number("sampled_one_in"), 1);
  for (const JsonReader& module : leaks.array("modules")) {
    places->modules.push_back({module.text("path"), module.text("build_id")});
  }
  for (const JsonReader& row : leaks.array("sites")) {
    LeakReport leak;
    leak.kind = memory_kind(row.text("kind"));
    leak.blocks = row.number("blocks");
    leak.bytes = row.number("bytes");
    for (const JsonReader& frame : row.array("frames")) {
      leak.frames.push_back(read_frame(frame, &by_path, places));
    }
    report->leaks.push_back(std::move(leak));
  }
  name_leaks(report);
}

void name_leaks(Report* report) {
  for (LeakReport& leak : report->leaks) {
    leak.site = "unknown";
    leak.callers.clear();
    for (std::size_t i = 0; i < leak.frames.size(); ++i) {
      const std::string words =
          in_words(report->leak_places, report->leak_places.frames[leak.frames[i]]);
      if (i == 0) {
        leak.site = words;
      } else {
        leak.callers += (leak.callers.empty() ? "" : ", ") + words;
      }
    }
  }
}

std::vector<std::string> unchecked_files(const std::vector<Report>& reports) {
  std::set<std::string> files;
  for (const Report& report : reports) {
    const SitesReport& places = report.leak_places;
    for (const SiteFrameReport& frame : places.frames) {
      if (frame.module < 0 || frame.names.front() != place_of(places, frame)) continue;
      const SiteModuleReport& module = places.modules[static_cast<std::size_t>(frame.module)];
      if (module.build_id.empty() && !module.path.empty()) files.insert(module.path);
    }
  }
  return {files.begin(), files.end()};
}

}  // namespace cupool::cli
