// SPDX-License-Identifier: Apache-2.0
// What a process answers to `cupool top`, and everything that the command makes of it.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "channel/messages.h"
#include "cli/top/table.h"
#include "stats/live_figures.h"
#include "target.h"

namespace fuzz {

using cupool::stats::LiveAnswer;
using cupool::stats::LiveFigures;

void run_live_figures(const std::string& input) {
  cupool::cli::LiveProcess process;
  const LiveAnswer answer =
      cupool::stats::read_live_figures(input.data(), input.size(), &process.figures);
  if (answer != LiveAnswer::figures) return;
  require(input.size() == sizeof(LiveFigures), "figures have one size");
  process.state = cupool::cli::LiveProcess::State::told;
  process.command = process.figures.program.data();
  for (std::size_t i = 0; i < process.figures.device_count; ++i) {
    process.all.add(process.figures.devices[i]);
  }
  cupool::cli::LiveReading reading;
  reading.before = {process};
  reading.before[0].figures.time_ns /= 2;
  reading.now = {process};
  for (const std::size_t columns : {0, 1, 80}) {
    const std::string table = cupool::cli::live_table(reading, columns);
    require(std::count(table.begin(), table.end(), '\n') == 2, "a heading and a row");
    require(table.find('\x1b') == std::string::npos, "no control characters");
  }
  require(cupool::cli::live_details(reading).find('\x1b') == std::string::npos,
          "no control characters");
  cupool::cli::live_summary(reading);
  const std::string line = cupool::cli::live_json(reading, 1);
  require(nlohmann::json::accept(line), "JSON is written as such");
}

std::vector<std::string> seeds_of_live_figures() {
  LiveFigures none;
  none.magic = cupool::channel::kNeighbourMagic;
  LiveFigures some = none;
  some.time_ns = 1'000'000'000;
  cupool::stats::set_text(&some.program, "solve");
  cupool::stats::set_text(&some.free_mode, "auto");
  cupool::stats::set_text(&some.backend, "pool");
  for (int i = 0; i < 2; ++i) {
    cupool::stats::LiveDevice device;
    device.ordinal = i;
    device.id.fill(7);
    cupool::stats::set_text(&device.name, "GPU");
    device.gauges[0] = {1 << 20, 1 << 21};
    device.counters[0] = 300;
    some.add(device);
  }
  LiveFigures newer = none;
  newer.version = 2;
  return {bytes_of(none), bytes_of(some), bytes_of(newer)};
}

}  // namespace fuzz
