// SPDX-License-Identifier: Apache-2.0
// The CSV report, read back by a parser of RFC 4180 that is not the writer's, and compared with the
// snapshot figure by figure.
#include "report/csv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "fixed_snapshot.h"

namespace cupool::report {
namespace {

using test::fixed_snapshot;
using Row = std::vector<std::string>;

// RFC 4180 by its grammar: fields, quoted or not, between commas; lines end in CR LF.
std::vector<Row> parsed(const std::string& text) {
  std::vector<Row> rows;
  Row row;
  std::string field;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c != '"') {
        field += c;
      } else if (i + 1 < text.size() && text[i + 1] == '"') {
        field += text[++i];
      } else {
        quoted = false;
      }
    } else if (c == '"') {
      quoted = true;
    } else if (c == ',') {
      row.push_back(std::move(field));
      field.clear();
    } else if (c == '\r' && i + 1 < text.size() && text[i + 1] == '\n') {
      ++i;
      row.push_back(std::move(field));
      field.clear();
      rows.push_back(std::move(row));
      row.clear();
    } else {
      field += c;
    }
  }
  EXPECT_TRUE(field.empty() && row.empty() && !quoted) << "the last line has no end";
  return rows;
}

constexpr std::size_t kDevice = 4, kKind = 5, kName = 6, kValue = 7, kColumns = 8;

std::map<std::string, std::string> values_of(const std::vector<Row>& rows,
                                             const std::string& device) {
  std::map<std::string, std::string> values;
  for (const Row& row : rows) {
    EXPECT_EQ(row.size(), kColumns);
    if (row.at(kDevice) != device || row.at(kKind).rfind("sample", 0) == 0) continue;
    const bool fresh = values.emplace(row.at(kKind) + "/" + row.at(kName), row.at(kValue)).second;
    EXPECT_TRUE(fresh) << row.at(kKind) << " " << row.at(kName) << " comes twice";
  }
  return values;
}

TEST(CsvReport, HasARowForEachFigure) {
  stats::Snapshot snapshot = fixed_snapshot();
  std::uint64_t next = std::uint64_t{1} << 60;
  stats::DeviceSnapshot& device = snapshot.devices[0];
  for (std::uint64_t& counter : device.counters) counter = ++next;
  for (stats::GaugeValue& gauge : device.gauges) {
    gauge = {-static_cast<std::int64_t>(++next), static_cast<std::int64_t>(++next)};
  }
  const std::vector<Row> rows = parsed(csv_report(snapshot));
  EXPECT_EQ(rows.at(0),
            (Row{"timestamp", "host", "pid", "rank", "device", "kind", "name", "value"}));
  const auto values = values_of(rows, "0");
#define CUPOOL_COUNTER(key, unit, label, help) \
  EXPECT_EQ(values.at("counter/" #key), std::to_string(device[stats::Counter::key]));
#define CUPOOL_GAUGE(key, unit, label, help)                                                      \
  EXPECT_EQ(values.at("gauge_current/" #key), std::to_string(device[stats::Gauge::key].current)); \
  EXPECT_EQ(values.at("gauge_peak/" #key), std::to_string(device[stats::Gauge::key].peak));
#include "stats/counters.def"
  EXPECT_EQ(values.at("time/malloc_p99_9_ns"), "16383");
  EXPECT_EQ(values.at("time/synchronize_max_ns"), "21000000");
  EXPECT_EQ(values.at("pool/reserved_high_bytes"), std::to_string(3090u << 20));
  EXPECT_EQ(values.at("peak_use/driver_slack_bytes"), std::to_string(16u << 20));
  EXPECT_EQ(values.at("peak_use/taken_bytes"), std::to_string(3088u << 20));
  EXPECT_EQ(values_of(rows, "").at("process/end_wall_ns"), std::to_string(snapshot.end_wall_ns));
}

TEST(CsvReport, EachRowSaysWhenWhereAndWho) {
  const std::vector<Row> rows = parsed(csv_report(fixed_snapshot()));
  ASSERT_GT(rows.size(), stats::kCounters + 2 * stats::kGauges);
  for (std::size_t i = 1; i < rows.size(); ++i) {
    if (rows[i].at(kKind).rfind("sample", 0) == 0) continue;
    EXPECT_THAT(Row(rows[i].begin(), rows[i].begin() + 4),
                testing::ElementsAre("2025-11-20T15:52:19.340000Z", "node17", "4242", "3"));
  }
}

TEST(CsvReport, SamplesHaveTheirOwnTimes) {
  const std::string text = csv_report(fixed_snapshot());
  const std::string first = "2025-11-20T15:52:07.000000Z,node17,4242,3,0,";
  const std::string second = "2025-11-20T15:52:07.200000Z,node17,4242,3,0,";
  EXPECT_THAT(text, testing::HasSubstr(first + "sample,application_bytes,4096\r\n"));
  EXPECT_THAT(text, testing::HasSubstr(first + "sample_growth,malloc_calls_total,10\r\n"));
  EXPECT_THAT(text, testing::HasSubstr(second + "sample_growth,malloc_calls_total,15\r\n"));
  EXPECT_THAT(text, testing::HasSubstr(second + "sample,device_free_bytes,100\r\n"));
  EXPECT_THAT(text, testing::Not(testing::HasSubstr(first + "sample,device_free_bytes")));
}

TEST(CsvReport, WithoutAPoolThereAreNoRowsOfIt) {
  stats::Snapshot snapshot = fixed_snapshot();
  EXPECT_THAT(csv_report(snapshot), testing::HasSubstr(",pool,"));
  snapshot.devices[0].pool = {};
  EXPECT_THAT(csv_report(snapshot), testing::Not(testing::HasSubstr(",pool,")));
}

TEST(CsvReport, NamesWithCommasQuotesAndLineEndsStayOneField) {
  stats::Snapshot snapshot = fixed_snapshot();
  snapshot.process.host = "a,\"b\"\r\nc";
  snapshot.process.rank = "";
  const std::vector<Row> rows = parsed(csv_report(snapshot));
  EXPECT_EQ(rows.at(1).size(), kColumns);
  EXPECT_EQ(rows.at(1).at(1), "a,\"b\"\r\nc");
  EXPECT_EQ(rows.at(1).at(3), "");
}

}  // namespace
}  // namespace cupool::report
