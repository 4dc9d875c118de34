// SPDX-License-Identifier: Apache-2.0
// An address identifies a block only from its allocation to its free.
#include "cli/trial/replay_trace.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <string_view>
#include <unordered_map>

#include "cli/shell/exit_code.h"
#include "cli/shell/input.h"
#include "util/text.h"

namespace cupool::cli {

namespace {

// The whole file is held in memory. Twice the default of CUPOOL_TRACE_LIMIT.
constexpr std::uint64_t kMostTraceBytes = std::uint64_t{2} << 30;

// Indices of the required columns.
struct Columns {
  std::size_t thread = 0, action = 0, pointer = 0, size = 0, last = 0;
};

[[noreturn]] void fail(const std::string& file, std::size_t line, const std::string& what) {
  throw UsageError(file + ", line " + std::to_string(line) + ": " + what);
}

Columns columns_of(std::string_view header, const std::string& file) {
  const std::vector<std::string_view> names = util::split(header, ',');
  const auto place = [&](std::string_view name) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) {
      throw UsageError(file + ": not a trace of allocations: no column " + std::string(name) +
                       ". CUPOOL_TRACE=run.csv and RMM's logging adaptor write traces");
    }
    return static_cast<std::size_t>(found - names.begin());
  };
  Columns columns{place("Thread"), place("Action"), place("Pointer"), place("Size"), 0};
  columns.last = std::max({columns.thread, columns.action, columns.pointer, columns.size});
  return columns;
}

struct Live {
  std::size_t block = 0;
  std::uint64_t bytes = 0;
};

// The state of parsing.
struct Reading {
  ReplayTrace trace;
  std::map<std::string, std::size_t, std::less<>> threads;
  std::unordered_map<std::string, Live> live;
  std::uint64_t live_bytes = 0;

  std::vector<ReplayEvent>& events_of(std::string_view thread) {
    const auto [place, is_new] = threads.try_emplace(std::string(thread), trace.threads.size());
    if (is_new) trace.threads.emplace_back();
    return trace.threads[place->second];
  }
};

void take_allocation(std::string_view thread, std::string_view pointer, std::uint64_t bytes,
                     Reading* reading) {
  ReplayTrace& trace = reading->trace;
  const Live live{trace.blocks++, bytes};
  if (!reading->live.try_emplace(std::string(pointer), live).second) {
    // The trace lacks the free; the address now belongs to the new block.
    reading->live[std::string(pointer)] = live;
  }
  reading->events_of(thread).push_back({false, live.block, bytes});
  ++trace.allocations;
  reading->live_bytes += bytes;
  trace.peak_bytes = std::max(trace.peak_bytes, reading->live_bytes);
}

void take_free(std::string_view thread, std::string_view pointer, Reading* reading) {
  const auto found = reading->live.find(std::string(pointer));
  if (found == reading->live.end()) {
    ++reading->trace.skipped;
    return;
  }
  reading->events_of(thread).push_back({true, found->second.block, found->second.bytes});
  reading->live_bytes -= std::min(reading->live_bytes, found->second.bytes);
  ++reading->trace.frees;
  reading->live.erase(found);
}

}  // namespace

ReplayTrace parse_trace(const std::string& text, const std::string& file) {
  Reading reading;
  Columns columns;
  std::size_t number = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = util::trim(std::string_view(text).substr(at, end - at));
    at = end + 1;
    if (++number == 1) {
      columns = columns_of(line, file);
      continue;
    }
    if (line.empty()) continue;
    const std::vector<std::string_view> cells = util::split(line, ',');
    if (cells.size() <= columns.last) fail(file, number, "too few columns");
    std::uint64_t bytes = 0;
    if (!util::parse_uint64(cells[columns.size], &bytes))
      fail(file, number, "the size is not a number of bytes");
    const std::string_view action = cells[columns.action];
    if (action == "allocate" && bytes > 0) {
      if (bytes > UINT64_MAX - reading.live_bytes)
        fail(file, number, "more live bytes than 64 bits count");
      take_allocation(cells[columns.thread], cells[columns.pointer], bytes, &reading);
    } else if (action == "free") {
      take_free(cells[columns.thread], cells[columns.pointer], &reading);
    } else if (action == "allocate" || action == "allocate failure") {
      ++reading.trace.skipped;
    } else {
      fail(file, number, "unknown action " + std::string(action.substr(0, 40)));
    }
  }
  if (number == 0) throw UsageError(file + ": is empty");
  return std::move(reading.trace);
}

std::string read_trace(const std::string& file) {
  std::string content;
  std::string reason;
  if (!read_input(file, kMostTraceBytes, &content, &reason)) {
    throw UsageError(file + ": cannot be read: " + reason +
                     ". cupool run --trace run.csv ./program writes a trace");
  }
  return content;
}

}  // namespace cupool::cli
