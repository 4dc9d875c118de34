// SPDX-License-Identifier: Apache-2.0
// Where memory comes from: the call sites of a report, as text and in the formats of flame graph
// tools. Estimates; names of functions are found separately (cli/site_names.h).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cli/page/json_reader.h"

namespace cupool::cli {

struct SiteModuleReport {
  std::string path;
  std::string build_id;  ///< "": unknown
};

struct SiteFrameReport {
  int module = -1;  ///< -1: unknown, and `offset` is the address
  std::uint64_t offset = 0;
  /// Functions, the innermost inlined one first; never empty.
  std::vector<std::string> names;
};

/// Figures by their keys in the report; a missing key counts as 0.
using SiteFiguresReport = std::map<std::string, std::uint64_t>;

struct SiteReport {
  std::vector<std::size_t> frames;  ///< innermost first
  SiteFiguresReport figures;
};

struct SitesReport {
  std::uint64_t interval = 0;  ///< bytes; 0: the report has no call sites
  std::uint64_t widest_interval = 0;
  std::vector<SiteModuleReport> modules;
  std::vector<SiteFrameReport> frames;
  std::vector<SiteReport> sites;  ///< the last is of all others, without frames, if there are any
  std::uint64_t unfollowed = 0;
  std::uint64_t lost = 0;
};

/// A figure that a flame graph can have as its widths.
struct SiteMeasure {
  const char* key;
  const char* title;
  bool is_bytes;
};
inline constexpr std::array<SiteMeasure, 4> kSiteMeasures = {{
    {"bytes", "allocated bytes", true},
    {"peak_bytes", "live at the peak", true},
    {"calls", "allocations", false},
    {"waited_calls", "frees that waited", false},
}};

/// Reads the report's `sites`, with names like "libfoo.so+0x1234". Throws ReportError.
SitesReport read_sites(const JsonReader& json);

/// The place of a frame: "libfoo.so+0x1234".
std::string place_of(const SitesReport& sites, const SiteFrameReport& frame);

/// Makes sites one whose functions have the same names, once they are named.
void merge_sites(SitesReport* sites);

/// The names of a site's functions, outermost first.
std::vector<std::string> stack_of(const SitesReport& sites, const SiteReport& site);

/// Folded stacks, a line each: "frame;frame;frame value", of `key`.
std::string collapsed_stacks(const SitesReport& sites, const std::string& key);

/// speedscope's file format, with a profile for each measure that is not 0 everywhere.
std::string speedscope_file(const SitesReport& sites, const std::string& name);

/// "512 KiB", or "512 KiB to 64 MiB" where it changed.
std::string interval_text(const SitesReport& sites);

/// "Where memory comes from": the ten sites with most bytes; "" without any.
std::string sites_text(const SitesReport& sites);

}  // namespace cupool::cli
