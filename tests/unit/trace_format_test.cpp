// SPDX-License-Identifier: Apache-2.0
// Traces as text: rows as RMM's replay benchmark reads them, events as Chrome's format has them.
#include "trace/format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <time.h>

#include <nlohmann/json.hpp>

#include "temporary_folder.h"

namespace cupool::trace {
namespace {

using nlohmann::json;

constexpr std::uint64_t kWall = 1'763'653'927'000'000'000;  // 2025-11-20 15:52:07 UTC
constexpr std::uint64_t kStart = 5'000'000'000;

Event event(Action action, std::uint64_t after_ns, std::uint64_t address, std::uint64_t bytes) {
  Event made;
  made.time_ns = kStart + after_ns;
  made.duration_ns = 1'500;
  made.address = address;
  made.bytes = bytes;
  made.tid = 77;
  made.device = 0;
  made.action = action;
  return made;
}

class TraceFormat : public testing::Test {
 protected:
  void SetUp() override { ::tzset(); }
  static std::string rendered(Format format, const std::vector<Event>& events) {
    Renderer renderer(format, kWall, kStart, 4242, "process \"4242\"");
    std::string text = renderer.header();
    for (const Event& each : events) renderer.render(each, &text);
    return text + renderer.footer();
  }
  test::ScopedVariable time_zone_{"TZ", "UTC"};
};

TEST_F(TraceFormat, IsSaidByTheName) {
  EXPECT_EQ(format_of("/tmp/a.json"), Format::chrome_json);
  EXPECT_EQ(format_of("/tmp/a.csv"), Format::rmm_csv);
  EXPECT_EQ(format_of("a.json.txt"), Format::rmm_csv);
  EXPECT_EQ(format_of(".json"), Format::rmm_csv) << "a hidden file without an extension";
}

TEST_F(TraceFormat, RowsAreThoseOfRmm) {
  EXPECT_EQ(
      rendered(Format::rmm_csv, {event(Action::allocate, 1'234'000, 0x7f00, 100),
                                 event(Action::free, 1'000'000'999, 0x7f00, 100),
                                 event(Action::free_done, 1'000'001'999, 0x7f00, 100),
                                 event(Action::allocate_failure, 60'000'000'000, 0, 1 << 30)}),
      "Thread,Time,Action,Pointer,Size,Stream\n"
      "77,15:52:07.001234,allocate,0x7f00,100,0\n"
      "77,15:52:08.000000,free,0x7f00,100,0\n"
      "77,15:53:07.000000,allocate failure,(nil),1073741824,0\n");
}

TEST_F(TraceFormat, ChromeGetsBarsCountersAndNames) {
  const json events =
      json::parse(rendered(Format::chrome_json, {event(Action::allocate, 10'500, 0x7f00, 100),
                                                 event(Action::free, 200'000, 0x7f00, 100),
                                                 event(Action::free_done, 201'500, 0x7f00, 100)}));
  std::map<std::string, std::vector<json>> by_name;
  for (const json& each : events) by_name[each.at("name")].push_back(each);
  EXPECT_EQ(by_name["process_name"].at(0).at("args").at("name"), "process \"4242\"");
  EXPECT_EQ(by_name["thread_name"].size(), 1u) << "once for each thread";
  const json malloc = by_name["malloc"].at(0);
  EXPECT_EQ(malloc.at("ph"), "X");
  EXPECT_EQ(malloc.at("pid"), 4242);
  EXPECT_EQ(malloc.at("tid"), 77);
  EXPECT_DOUBLE_EQ(malloc.at("ts"), 9.0) << "when it began";
  EXPECT_DOUBLE_EQ(malloc.at("dur"), 1.5);
  EXPECT_EQ(malloc.at("args").at("bytes"), 100);
  EXPECT_EQ(malloc.at("args").at("address"), "0x7f00");
  ASSERT_EQ(by_name["free"].size(), 1u);
  EXPECT_DOUBLE_EQ(by_name["free"].at(0).at("ts"), 200.0);
  const auto& live = by_name["live bytes of device 0"];
  ASSERT_EQ(live.size(), 2u);
  EXPECT_EQ(live[0].at("args").at("bytes"), 100);
  EXPECT_EQ(live[1].at("args").at("bytes"), 0);
}

// Changes in quick succession are one point of the curve, and the last of them is it.
TEST_F(TraceFormat, ACurveEndsWithWhatIsLive) {
  const json events = json::parse(rendered(
      Format::chrome_json,
      {event(Action::allocate, 10'000, 0x100, 100), event(Action::allocate, 20'000, 0x200, 50),
       event(Action::free, 30'000, 0x100, 100), event(Action::allocate, 900'000, 0x300, 7),
       event(Action::free, 910'000, 0x200, 50)}));
  std::vector<std::pair<double, int>> points;
  for (const json& each : events) {
    if (each.at("ph") == "C") points.emplace_back(each.at("ts"), each.at("args").at("bytes"));
  }
  const std::vector<std::pair<double, int>> expected = {{10, 100}, {30, 50}, {900, 57}, {910, 7}};
  EXPECT_EQ(points, expected);
}

TEST_F(TraceFormat, ARefusedFreeIsNoAllocation) {
  const std::vector<Event> freed = {event(Action::allocate, 10'000, 0x100, 100),
                                    event(Action::free, 200'000, 0x100, 100),
                                    event(Action::free_refused, 400'000, 0x100, 100)};
  std::map<std::string, int> names;
  int live = 0;
  for (const json& each : json::parse(rendered(Format::chrome_json, freed))) {
    ++names[each.at("name")];
    if (each.at("ph") == "C") live = each.at("args").at("bytes");
  }
  EXPECT_EQ(names["malloc"], 1);
  EXPECT_EQ(names["free"], 0);
  EXPECT_EQ(names["free refused"], 1);
  EXPECT_EQ(live, 100);
  const std::string rows = rendered(Format::rmm_csv, freed);
  EXPECT_NE(rows.find(",allocate,0x100,100,0\n", rows.find(",free,")), std::string::npos)
      << "a replay has the block again" << rows;
}

TEST_F(TraceFormat, TheFooterHasItsBound) {
  Renderer renderer(Format::chrome_json, kWall, kStart, 1 << 22, "p");
  std::string text = renderer.header();
  for (int device = 0; device < 64; ++device) {
    for (const MemoryKind kind : {MemoryKind::page_locked, MemoryKind::stream_ordered}) {
      for (const std::uint64_t bytes : {1ull << 62, 1ull << 61}) {
        Event made = event(Action::allocate, 1ull << 60, 0x100, bytes);
        made.kind = kind;
        made.device = device;
        renderer.render(made, &text);
        made.time_ns += 1;
        renderer.render(made, &text);
      }
    }
  }
  EXPECT_GT(renderer.footer().size(), 100u * 100u);
  EXPECT_LE(renderer.footer().size(), renderer.footer_bytes());
}

TEST_F(TraceFormat, AChromeTraceWithoutItsEndIsStillRead) {
  Renderer renderer(Format::chrome_json, kWall, kStart, 1, "p");
  std::string text = renderer.header();
  renderer.render(event(Action::allocate, 1, 1, 1), &text);
  EXPECT_FALSE(json::parse(text + "]", nullptr, false).is_discarded());
}

}  // namespace
}  // namespace cupool::trace
