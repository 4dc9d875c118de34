// SPDX-License-Identifier: Apache-2.0
// Labels of figures: one for each, fit for the tables that show them.
#include "stats/labels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace cupool::stats {
namespace {

using testing::Each;

constexpr std::size_t kRoomInTheTextReport = 31;  // its column of labels, less their indentation

TEST(Labels, StandBesideTheirKeys) {
  EXPECT_STREQ(key_of(Counter::served_thread_cache_total), "served_thread_cache_total");
  EXPECT_EQ(label_of(Counter::served_thread_cache_total), "from the thread's cache");
  EXPECT_STREQ(key_of(Gauge::retired_bytes), "retired_bytes");
  EXPECT_EQ(label_of(Gauge::retired_bytes), "freed, GPU still using it");
}

TEST(Labels, AreThereForEachFigureAndFitTheirColumn) {
  const auto is_fit = [](std::string_view label) {
    return !label.empty() && label.size() <= kRoomInTheTextReport;
  };
  EXPECT_THAT(kCounterLabels, Each(testing::Truly(is_fit)));
  EXPECT_THAT(kGaugeLabels, Each(testing::Truly(is_fit)));
}

TEST(Labels, TellFiguresApart) {
  EXPECT_EQ(std::set<std::string_view>(std::begin(kCounterLabels), std::end(kCounterLabels)).size(),
            kCounters);
  EXPECT_EQ(std::set<std::string_view>(std::begin(kGaugeLabels), std::end(kGaugeLabels)).size(),
            kGauges);
}

TEST(Labels, AreShortWithoutTheirRemark) {
  EXPECT_EQ(short_label_of(Counter::growth_total), "growth");
  EXPECT_EQ(short_label_of(Gauge::application_bytes), "application");
  EXPECT_EQ(short_label_of(Counter::served_passthrough_total), "served by the driver");
  for (const std::string_view label : kCounterLabels) {
    const std::size_t remark = label.find('(');
    EXPECT_TRUE(remark == std::string_view::npos || label.back() == ')') << label;
  }
}

}  // namespace
}  // namespace cupool::stats
