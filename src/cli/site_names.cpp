// SPDX-License-Identifier: Apache-2.0
// addr2line only where a module has line numbers: it reads all of a large library for one address.
#include "cli/site_names.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <sstream>

#include "cli/doctor/elf_file.h"
#include "cli/shell/child.h"
#include "util/demangle.h"

namespace cupool::cli {

namespace {

constexpr std::size_t kAddressesAtOnce = 500;

// What a program prints, or "" if it is not here or fails.
std::string output_of(std::vector<std::string> argv) {
  ChildStart start;
  start.argv = std::move(argv);
  start.environment = Environment::inherited();
  if (find_program(start.argv[0], start.environment).path.empty()) return "";
  const CapturedEnd ended = run_captured(std::move(start));
  const bool fine = ended.end.start_code == 0 && ended.end.signal == 0 && ended.end.exit_code == 0;
  return fine ? ended.standard_output : "";
}

// Whether a text from a report is one, of the lengths that linkers make: another program takes it.
bool is_build_id(const std::string& text) {
  return text.size() >= 16 && text.size() <= 64 && text.size() % 2 == 0 &&
         text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

// A file with the debug information of a build, or "".
std::string downloaded(const std::string& build_id) {
  const char* const servers = std::getenv("DEBUGINFOD_URLS");
  if (!is_build_id(build_id) || servers == nullptr || *servers == '\0') return "";
  std::string path = output_of({"debuginfod-find", "debuginfo", build_id});
  path.erase(path.find_last_not_of('\n') + 1);
  return path;
}

// A place in a module, and its frames in all reports.
struct Place {
  std::uint64_t offset;
  std::vector<SiteFrameReport*> frames;
  void name(const std::vector<std::string>& names) const {
    for (SiteFrameReport* frame : frames) frame->names = names;
  }
};
using Places = std::vector<Place>;

// Of -a -f -i: for each address a line with it, then two for each function, inlined ones first.
void name_by_lines(const std::string& file, const Places& places) {
  for (std::size_t first = 0; first < places.size(); first += kAddressesAtOnce) {
    std::vector<std::string> argv = {"addr2line", "-a", "-f", "-i", "-C", "-e", file};
    const std::size_t last = std::min(first + kAddressesAtOnce, places.size());
    for (std::size_t i = first; i < last; ++i) {
      char offset[32];
      std::snprintf(offset, sizeof offset, "0x%llx",
                    static_cast<unsigned long long>(places[i].offset));
      argv.emplace_back(offset);
    }
    std::istringstream lines(output_of(std::move(argv)));
    std::vector<std::string> names;
    std::size_t at = first;
    const auto take = [&] {
      if (!names.empty() && at < last && names.front() != "??") places[at].name(names);
      if (!names.empty()) ++at;
      names.clear();
    };
    std::string line;
    while (std::getline(lines, line)) {
      if (line.compare(0, 2, "0x") == 0) {
        take();
        continue;
      }
      names.push_back(line);
      std::getline(lines, line);  // its file and line
    }
    take();
  }
}

void name_module(const std::string& path, const std::string& build_id, const Places& places) {
  if (build_id.empty()) return;  // nothing tells what ran
  std::vector<std::uint64_t> offsets;
  for (const Place& place : places) offsets.push_back(place.offset);
  std::string file = path;
  ElfFunctions found = functions_at(file, build_id, offsets);
  if (!found.has_all_symbols) {
    const std::string other = downloaded(build_id);
    if (!other.empty()) {
      ElfFunctions better = functions_at(other, "", offsets);
      if (better.has_all_symbols) {
        found = std::move(better);
        file = other;
      }
    }
  }
  for (std::size_t i = 0; i < found.names.size(); ++i) {
    if (!found.names[i].empty()) places[i].name({util::demangled(found.names[i])});
  }
  if (found.has_lines) name_by_lines(file, places);
}

}  // namespace

void name_sites(const std::vector<SitesReport*>& reports) {
  std::map<std::pair<std::string, std::string>,
           std::map<std::uint64_t, std::vector<SiteFrameReport*>>>
      modules;
  for (SitesReport* report : reports) {
    for (SiteFrameReport& frame : report->frames) {
      if (frame.module < 0) continue;
      const SiteModuleReport& module = report->modules[static_cast<std::size_t>(frame.module)];
      modules[{module.path, module.build_id}][frame.offset].push_back(&frame);
    }
  }
  for (const auto& [module, frames] : modules) {
    Places places;
    for (const auto& [offset, same] : frames) places.push_back({offset, same});
    name_module(module.first, module.second, places);
  }
  for (SitesReport* report : reports) merge_sites(report);
}

}  // namespace cupool::cli
