// SPDX-License-Identifier: Apache-2.0
// The expressions that `cupool compare` proposes for numbers that vary, and how it judges.
#include "cli/trial/ignored.h"

#include <gtest/gtest.h>

#include "cli/trial/comparison.h"

namespace cli {
namespace {

using cupool::cli::comparable;
using cupool::cli::compare_outcomes;
using cupool::cli::Likeness;
using cupool::cli::Outcome;
using cupool::cli::patterns_of;
using cupool::cli::proposed_ignores;
using cupool::cli::speed_sentence;
using cupool::cli::speed_words;

using Texts = std::vector<std::string>;

TEST(ProposedIgnores, OpenTheNumbersThatVaryAndNothingElse) {
  const struct {
    Texts runs;
    Texts expected;
  } rows[] = {
      {{"took 12 ms\n", "took 9 ms\n"}, {"took [0-9]+ ms"}},
      {{"took 12.5 ms\n", "took 9 ms\n"}, {"took [0-9.]+ ms"}},
      {{"sum 3.5 in 1.2e-3 s\n", "sum 3.5 in 4e-2 s\n"}, {"in [0-9.e-]+ s"}},
      {{"time:   9.8 ms (of 4)\n", "time: 110.2 ms (of 4)\n"}, {"time: *[0-9.]+ ms"}},
      {{"step 1: 3 us\nstep 2: 4 us\n", "step 1: 5 us\nstep 2: 6 us\n"}, {": [0-9]+ us"}},
      {{"a\n7\n8\n", "a\n9\n8\n"}, {"^[0-9]+$"}},
      {{"pid=12 at 04:30:59\n", "pid=345 at 04:31:02\n"}, {"pid=[0-9]+", "at [0-9:]+"}},
      {{"p99_us=7.5\np50_us=3\n", "p99_us=7.6\np50_us=3\n"}, {"p99_us=[0-9.]+"}},
      {{"on 2026-11-25\n", "on 2026-11-26\n"}, {"on [0-9-]+"}},
      {{"block 0x7f3a (x86)\n", "block 0x81cc0 (x86)\n"}, {"block 0x[0-9a-fA-F]+"}},
      {{"f(x) [12] *\n", "f(x) [7] *\n"}, {"f\\(x\\) \\[[0-9]+\\]"}},
  };
  for (const auto& row : rows) {
    EXPECT_EQ(proposed_ignores(row.runs, {}), row.expected) << row.runs.front();
    const auto patterns = patterns_of(row.expected);
    EXPECT_EQ(comparable(row.runs[0], patterns), comparable(row.runs[1], patterns));
  }
}

TEST(ProposedIgnores, KeepEveryNumberThatDoesNotVary) {
  const Texts runs = {"residual 1.5e-7 after 12 steps, 3.25 s\n",
                      "residual 1.5e-7 after 12 steps, 3.31 s\n"};
  const auto patterns = patterns_of(proposed_ignores(runs, {}));
  ASSERT_FALSE(patterns.empty());
  EXPECT_NE(comparable(runs[0], patterns),
            comparable("residual 1.6e-7 after 12 steps, 3.25 s\n", patterns));
  EXPECT_NE(comparable(runs[0], patterns),
            comparable("residual 1.5e-7 after 13 steps, 3.25 s\n", patterns));
}

// A column of results beside a column of times: no expression for one number could tell them apart.
TEST(ProposedIgnores, TakeTheWholeLineWhereNoWordNamesTheNumber) {
  const Texts runs = {"1 2 77\n3 4 5\n", "1 2 99\n3 4 5\n"};
  EXPECT_EQ(proposed_ignores(runs, {}), Texts{"^1 2 [0-9]+$"});
}

TEST(ProposedIgnores, HideNoResultThatLooksLikeATime) {
  // "value N" is steady in two lines and varies in one.
  const Texts runs = {"value 1\nvalue 2\nvalue 3\n", "value 1\nvalue 2\nvalue 9\n"};
  const auto proposed = proposed_ignores(runs, {});
  EXPECT_EQ(comparable("value 1\nvalue 2\n", patterns_of(proposed)), "value 1\nvalue 2\n");
}

TEST(ProposedIgnores, LearnTheShapeOfANumberFromRunsWithCupool) {
  EXPECT_EQ(proposed_ignores({"took 12 ms\n", "took 9 ms\n"}, {"took 3.25 ms\n"}),
            Texts{"took [0-9.]+ ms"});
  EXPECT_EQ(proposed_ignores({"took 12 ms\n", "took 9 ms\n"}, {"failed\n"}),
            Texts{"took [0-9]+ ms"});
}

TEST(ProposedIgnores, AreNoneWhereMoreThanNumbersVaries) {
  EXPECT_EQ(proposed_ignores({"a b\n", "b a\n"}, {}), Texts{});
  EXPECT_EQ(proposed_ignores({"1\n", "1\n2\n"}, {}), Texts{}) << "the number of lines differs";
  EXPECT_EQ(proposed_ignores({"took 1 s\n", "took 2 s"}, {}), Texts{})
      << "the last line's end differs";
  EXPECT_EQ(proposed_ignores({"same 1\n", "same 1\n"}, {}), Texts{});
  EXPECT_EQ(proposed_ignores({}, {}), Texts{});
  EXPECT_EQ(proposed_ignores({"", ""}, {}), Texts{});
  EXPECT_EQ(proposed_ignores({"\x1b[1m1\n", "\x1b[1m2\n"}, {}), Texts{}) << "not to be typed";
  std::string one;
  std::string other;
  for (char c = 'a'; c <= 'z'; ++c) {
    one += std::string(1, c) + " 1\n";
    other += std::string(1, c) + " 2\n";
  }
  EXPECT_EQ(proposed_ignores({one, other}, {}), Texts{}) << "26 expressions help nobody";
}

TEST(Comparable, LeavesLinesThatAreTooLongForTheMatcher) {
  const std::string line(4u << 20, 'x');
  EXPECT_EQ(comparable(line + "\nx\n", patterns_of({"x.*x", "x"})), line + "\n\n");
}

Outcome outcome(const std::string& ending, const std::string& output) {
  return {ending, std::make_shared<const std::string>(output), {}};
}

TEST(CompareOutcomes, JudgesCupoolOnlyByWhatIsSteadyWithoutIt) {
  const struct {
    Texts without;
    Texts with;
    Likeness expected;
  } rows[] = {
      {{"a", "a"}, {"a", "a"}, Likeness::same},     {{"a", "a"}, {"a", "b"}, Likeness::different},
      {{"a", "b"}, {"a", "a"}, Likeness::unsteady}, {{"a", "b"}, {"c", "c"}, Likeness::unsteady},
      {{"a"}, {"b"}, Likeness::unjudged},           {{"a"}, {"a"}, Likeness::same}};
  for (const auto& row : rows) {
    std::vector<Outcome> without;
    std::vector<Outcome> with;
    for (const std::string& text : row.without) without.push_back(outcome("0", text));
    for (const std::string& text : row.with) with.push_back(outcome("0", text));
    EXPECT_EQ(compare_outcomes(without, with, {}).at(1).likeness, row.expected)
        << row.without.front() << row.with.front();
  }
}

TEST(Speed, IsNeverAFractionOfTimesAsFast) {
  EXPECT_EQ(speed_words({122, 120, 125}, {100, 99, 101}), "1.22 times as fast");
  EXPECT_EQ(speed_words({100, 99, 101}, {122, 120, 125}), "1.22 times slower");
  EXPECT_EQ(speed_words({100, 99, 101}, {100.1, 99, 101}), "as fast");
  EXPECT_EQ(speed_words({0, 0, 0}, {100, 99, 101}), "as fast") << "no time was measured";
  EXPECT_EQ(speed_sentence({100, 99, 101}, {122, 120, 125}, 3),
            "slower in every run: 1.22 times slower");
  EXPECT_EQ(speed_sentence({100, 99, 121}, {122, 120, 125}, 3),
            "no time difference beyond the spread (medians: 1.22 times slower)");
}

}  // namespace
}  // namespace cli
