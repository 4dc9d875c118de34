// SPDX-License-Identifier: Apache-2.0
// How numbers read, how names are compared, what counts as a number.
#include "util/text.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace cupool::util {
namespace {

TEST(FormatBytes, UsesTheLargestBinaryUnitAndThreeDigits) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.00 KiB");
  EXPECT_EQ(format_bytes(std::uint64_t{3} << 29), "1.50 GiB");
  EXPECT_EQ(format_bytes(std::uint64_t{12} << 20), "12.0 MiB");
  EXPECT_EQ(format_bytes(std::uint64_t{139} << 30), "139 GiB");
  EXPECT_EQ(format_bytes(UINT64_MAX), "16384 PiB");
}

TEST(FormatBytes, NeverShows1024OfAUnitThatHasALarger) {
  EXPECT_EQ(format_bytes((std::uint64_t{1} << 20) - 1), "1.00 MiB");
  EXPECT_EQ(format_bytes(std::uint64_t{1023} << 10), "1023 KiB");
}

TEST(FormatBytes, RoundingNeverAddsADigit) {
  EXPECT_EQ(format_bytes(10239), "10.0 KiB");  // 9.999
  EXPECT_EQ(format_bytes(102399), "100 KiB");  // 99.999
}

TEST(FormatDuration, GoesFromNanosecondsToSeconds) {
  EXPECT_EQ(format_duration_ns(0), "0 ns");
  EXPECT_EQ(format_duration_ns(999), "999 ns");
  EXPECT_EQ(format_duration_ns(1500), "1.50 us");
  EXPECT_EQ(format_duration_ns(12'340'000), "12.3 ms");
  EXPECT_EQ(format_duration_ns(4'200'000'000), "4.20 s");
  EXPECT_EQ(format_duration_ns(7'200'000'000'000), "7200 s");
}

TEST(FormatCount, SeparatesThousands) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(1000), "1,000");
  EXPECT_EQ(format_count(1234567), "1,234,567");
  EXPECT_EQ(format_count(UINT64_MAX), "18,446,744,073,709,551,615");
}

TEST(FormatPercent, HasOneDecimalAndNoDivisionByZero) {
  EXPECT_EQ(format_percent(3, 8), "37.5 %");
  EXPECT_EQ(format_percent(8, 8), "100.0 %");
  EXPECT_EQ(format_percent(0, 0), "-");
  EXPECT_EQ(format_percent(0, 5), "0.0 %");
}

TEST(FormatPercent, RoundsNeitherSomeToNoneNorMostToAll) {
  EXPECT_EQ(format_percent(1, 1'000'000), "<0.1 %");
  EXPECT_EQ(format_percent(999'999, 1'000'000), ">99.9 %");
  EXPECT_EQ(format_percent(1, 1000), "0.1 %");
  EXPECT_EQ(format_percent(999, 1000), "99.9 %");
}

TEST(Trim, RemovesBlanksAtBothEndsOnly) {
  EXPECT_EQ(trim("  a b\t\r\n"), "a b");
  EXPECT_EQ(trim(" \t "), "");
  EXPECT_EQ(trim(""), "");
}

TEST(Split, KeepsEmptyParts) {
  EXPECT_EQ(split("a, b ,,c", ','), (std::vector<std::string_view>{"a", "b", "", "c"}));
  EXPECT_EQ(split("", ','), (std::vector<std::string_view>{""}));
}

TEST(ParseUint64, TakesDigitsOnly) {
  std::uint64_t value = 7;
  EXPECT_TRUE(parse_uint64("18446744073709551615", &value));
  EXPECT_EQ(value, UINT64_MAX);
  value = 7;
  for (const char* bad : {"", "-1", "+1", " 1", "1 ", "0x10", "1e3", "1.0", "18446744073709551616",
                          "99999999999999999999999"}) {
    EXPECT_FALSE(parse_uint64(bad, &value)) << bad;
    EXPECT_EQ(value, 7u) << "a refused text must not change the value: " << bad;
  }
}

TEST(Printable, LeavesNothingThatATerminalObeys) {
  EXPECT_EQ(printable("a\x1b[31mb\r\n\t\x7f"), "a?[31mb????");
  EXPECT_EQ(printable("a\nb\x1b", true), "a\nb?");
  EXPECT_EQ(printable("\xc2\x9b"
                      "2J"),
            "?2J")
      << "the one-character form of ESC [";
  EXPECT_EQ(printable("\x9b"
                      "2J\xff\xe2\x82"),
            "?2J???")
      << "no UTF-8";
  EXPECT_EQ(printable("caf\xc3\xa9 \xe2\x82\xac"), "caf\xc3\xa9 \xe2\x82\xac");
  EXPECT_EQ(printable(""), "");
}

TEST(EditDistance, CountsInsertionsDeletionsReplacementsAndSwaps) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("abc", ""), 3u);
  EXPECT_EQ(edit_distance("abc", "abd"), 1u);
  EXPECT_EQ(edit_distance("abc", "abcd"), 1u);
  EXPECT_EQ(edit_distance("abc", "acb"), 1u) << "a swap of neighbours is one slip";
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
}

TEST(Closest, FindsAMisspellingAndNothingElse) {
  const std::vector<std::string_view> names = {"CUPOOL_POOL", "CUPOOL_STATS", "CUPOOL_STATS_FILE"};
  EXPECT_EQ(closest("CUPOOL_STAT", names), "CUPOOL_STATS");
  EXPECT_EQ(closest("CUPOOL_STATSFILE", names), "CUPOOL_STATS_FILE");
  EXPECT_EQ(closest("SOMETHING_QUITE_ELSE", names), "");
  EXPECT_EQ(closest("anything", {}), "");
}

}  // namespace
}  // namespace cupool::util
