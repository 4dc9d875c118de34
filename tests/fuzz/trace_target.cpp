// SPDX-License-Identifier: Apache-2.0
// Traces for the replay, and outputs that compare looks for numbers in.
#include <map>
#include <string>
#include <vector>

#include "cli/shell/exit_code.h"
#include "cli/trial/ignored.h"
#include "cli/trial/replay_trace.h"
#include "target.h"
#include "util/text.h"

namespace fuzz {

void run_trace(const std::string& input) {
  cupool::cli::ReplayTrace trace;
  try {
    trace = cupool::cli::parse_trace(input, "trace.csv");
  } catch (const cupool::cli::UsageError&) {
    return;
  }
  std::map<std::size_t, std::uint64_t> allocated;
  std::map<std::size_t, std::uint64_t> freed;
  std::uint64_t largest = 0;
  for (const auto& events : trace.threads) {
    for (const cupool::cli::ReplayEvent& event : events) {
      require(event.block < trace.blocks, "a block's number is below their number");
      require((event.is_free ? freed : allocated).try_emplace(event.block, event.bytes).second,
              "a block is allocated once and freed once");
      largest = std::max(largest, event.bytes);
    }
  }
  require(allocated.size() == trace.allocations && freed.size() == trace.frees,
          "the counts are the events'");
  for (const auto& [block, bytes] : freed) {
    require(allocated.count(block) == 1 && allocated[block] == bytes,
            "what is freed was allocated");
  }
  require(trace.peak_bytes >= largest, "the peak is no smaller than a block");
}

std::vector<std::string> seeds_of_trace() {
  return {
      "Thread,Time,Action,Pointer,Size,Stream\n"
      "1,10:00:00.000001,allocate,0x7f0000000000,1024,0\n"
      "1,10:00:00.000002,allocate,0x7f0000000400,2048,0\n"
      "2,10:00:00.000003,free,0x7f0000000000,1024,0\n"
      "2,10:00:00.000004,allocate failure,(nil),99999999999,0\n"
      "1,10:00:00.000005,allocate,0x7f0000000000,512,0\n"
      "1,10:00:00.000006,free,0x7f0000000400,2048,0\n",
      "Time,Size,Pointer,Action,Thread\r\n"
      "1,8,a,allocate,x\r\n\r\n1,8,a,allocate,y\r\n2,8,a,free,x\r\n2,8,a,free,x\r\n"};
}

void run_ignored(const std::string& input) {
  std::vector<std::string> outputs(3);
  std::size_t at = 0;
  for (std::string& output : outputs) {
    const std::size_t end = std::min(input.find('\0', at), input.size());
    output = input.substr(at, end - at);
    at = std::min(end + 1, input.size());
  }
  const std::vector<std::string> without = {outputs[0], outputs[1]};
  const std::vector<std::string> proposed = cupool::cli::proposed_ignores(without, {outputs[2]});
  if (proposed.empty()) return;
  const auto patterns = cupool::cli::patterns_of(proposed);
  require(cupool::cli::comparable(without[0], patterns) ==
              cupool::cli::comparable(without[1], patterns),
          "what is proposed makes the outputs equal");
}

std::vector<std::string> seeds_of_ignored() {
  const auto joined = [](const std::string& a, const std::string& b, const std::string& c) {
    return a + '\0' + b + '\0' + c;
  };
  return {
      joined("time 1.25 s\nsum 7\n", "time 1.31 s\nsum 7\n", "time 1e-3 s\nsum 7\n"),
      joined("[12] at 0x7f00 (3.5%) +-\n", "[9] at 0x7fff (4.25%) +-\n", "[9] at 0x1 (4%) +-\n"),
      joined("a 1 b 2 c 3\n\n", "a 4 b 5 c 6\n\n", "a 1 b 1 c 1\n\n")};
}

}  // namespace fuzz
