// SPDX-License-Identifier: Apache-2.0
// docs/statistics.md lists every figure with the words of counters.def, and no other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "stats/device_stats.h"
#include "temporary_folder.h"

namespace cupool::stats {
namespace {

TEST(StatisticsPage, HasEachFigureOnceWithUnitAndMeaning) {
  const std::string page = test::content_of(CUPOOL_TEST_SOURCE_FOLDER "/docs/statistics.md");
  ASSERT_FALSE(page.empty());
#define CUPOOL_COUNTER(key, unit, label, help) \
  EXPECT_THAT(page, testing::HasSubstr("\n| `" #key "` | " #unit " | " help " |\n"));
#define CUPOOL_GAUGE(key, unit, label, help) CUPOOL_COUNTER(key, unit, label, help)
#include "stats/counters.def"
}

TEST(StatisticsPage, HasNoFigureThatIsNotCounted) {
  const std::string page = test::content_of(CUPOOL_TEST_SOURCE_FOLDER "/docs/statistics.md");
  std::size_t listed = 0;
  for (const char* unit : {"calls", "blocks", "events", "bytes", "ns"}) {
    const std::string column = "` | " + std::string(unit) + " | ";
    for (std::size_t at = 0; (at = page.find(column, at)) != std::string::npos; ++at) ++listed;
  }
  EXPECT_EQ(listed, kCounters + kGauges);
}

}  // namespace
}  // namespace cupool::stats
