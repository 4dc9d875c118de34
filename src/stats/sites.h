// SPDX-License-Identifier: Apache-2.0
// Where memory comes from (CUPOOL_SITES): estimates of the call sites of all allocations.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cupool::stats {

/// Estimates from the sampled allocations of a call site.
struct SiteFigures {
  std::uint64_t samples = 0;  ///< sampled allocations
  double calls = 0;           ///< allocations
  double bytes = 0;           ///< requested by them
  double live_calls = 0;      ///< not freed yet
  double live_bytes = 0;
  double peak_bytes = 0;       ///< live when most bytes were live in the process
  double temporary_calls = 0;  ///< freed by the same thread within its next few calls
  double freed_calls = 0;
  double waited_calls = 0;  ///< those of the frees that waited for the GPU
};

struct SiteModule {
  std::string path;
  std::string build_id;  ///< hexadecimal; empty: none
};

/// A frame: an address, or a call of Python.
struct SiteFrame {
  int module = -1;  ///< index of the module; -1: unknown, and `offset` is the address
  std::uint64_t offset = 0;
  std::string function = {};  ///< of Python; then the others above mean nothing
  std::string file = {};
  std::uint64_t line = 0;
};

struct Site {
  std::vector<std::size_t> frames;  ///< indices, innermost first
  SiteFigures figures;
};

struct Sites {
  std::uint64_t interval_bytes = 0;         ///< one sample in as many bytes on average; 0: off
  std::uint64_t widest_interval_bytes = 0;  ///< in as many at most, of any thread at any time
  std::vector<SiteModule> modules;
  std::vector<SiteFrame> frames;
  std::vector<Site> sites;       ///< most bytes first
  SiteFigures others;            ///< of sites beyond the table's size, or without a frame
  std::uint64_t unfollowed = 0;  ///< samples whose end is not known: too many were live
  std::uint64_t lost = 0;        ///< samples and frees in no figure
};

}  // namespace cupool::stats
