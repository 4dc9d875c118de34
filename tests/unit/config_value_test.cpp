// SPDX-License-Identifier: Apache-2.0
// What each type of option takes, and all that it refuses.
#include "config/value.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <cstdint>
#include <string>

namespace cupool::config {
namespace {

constexpr std::uint64_t kKi = 1024;

SizeOption size_of(const char* text) {
  SizeOption size{12345, true};
  EXPECT_TRUE(parse_value(text, kAny, &size)) << text;
  return size;
}

TEST(Size, SuffixesAreBinary) {
  EXPECT_EQ(size_of("0").value, 0u);
  EXPECT_EQ(size_of("4096").value, 4096u);
  EXPECT_EQ(size_of("4096B").value, 4096u);
  EXPECT_EQ(size_of("2K").value, 2 * kKi);
  EXPECT_EQ(size_of("2KB").value, 2 * kKi);
  EXPECT_EQ(size_of("2KiB").value, 2 * kKi);
  EXPECT_EQ(size_of("3m").value, 3 * kKi * kKi);
  EXPECT_EQ(size_of("1 GiB").value, kKi * kKi * kKi);
  EXPECT_EQ(size_of("1T").value, kKi * kKi * kKi * kKi);
  EXPECT_FALSE(size_of("1T").percent);
}

TEST(Size, FractionsAreExact) {
  EXPECT_EQ(size_of("1.5G").value, 3 * kKi * kKi * kKi / 2);
  EXPECT_EQ(size_of("0.25K").value, 256u);
  EXPECT_EQ(size_of("1.05K").value, 1075u) << "1075.2, rounded down";
}

TEST(Size, PercentIsAShareOfTheDevice) {
  const SizeOption half = size_of("50%");
  EXPECT_TRUE(half.percent);
  EXPECT_EQ(half.resolve(1000), 500u);
  EXPECT_EQ(size_of("100 %").resolve(UINT64_MAX), UINT64_MAX) << "must not overflow";
  EXPECT_EQ(size_of("0%").resolve(1000), 0u);
  EXPECT_EQ(size_of("33%").resolve(10), 3u);
  EXPECT_EQ(size_of("7").resolve(1000), 7u) << "bytes do not depend on the device";
}

TEST(Size, LargestIsTheLargestSignedNumber) {
  EXPECT_EQ(size_of("9223372036854775807").value, static_cast<std::uint64_t>(INT64_MAX));
  SizeOption size{7, false};
  EXPECT_FALSE(parse_value("9223372036854775808", kAny, &size));
  EXPECT_FALSE(parse_value("8388608T", kAny, &size)) << "2^63";
  EXPECT_EQ(size_of("8388607T").value, std::uint64_t{8388607} << 40);
}

class MalformedSize : public testing::TestWithParam<const char*> {};

TEST_P(MalformedSize, IsRefusedAndChangesNothing) {
  SizeOption size{7, false};
  EXPECT_FALSE(parse_value(GetParam(), kAny, &size));
  EXPECT_EQ(size.value, 7u);
  EXPECT_FALSE(size.percent);
}

INSTANTIATE_TEST_SUITE_P(, MalformedSize,
                         testing::Values("", " ", "-1", "+1", "-3G", "G", "%", ".", ".5G", "1.G",
                                         "1.5", "1.5B", "1..5G", "1.5.5G", "12X", "12KK", "12Ki",
                                         "12iB", "12BK", "1G2", "0x10", "1e9", "1,5G", "101%",
                                         "1000%", "50.5%", "50%%", "5%G", "99999999999T",
                                         "18446744073709551616", "99999999999999999999999999",
                                         "18446744073709551615K", "1.0000000001G", "banana", "inf",
                                         "unlimited"));

TEST(Boolean, TakesTheUsualWordsInAnyCase) {
  for (const char* text : {"1", "on", "true", "YES", "On"}) {
    bool value = false;
    EXPECT_TRUE(parse_value(text, kAny, &value)) << text;
    EXPECT_TRUE(value) << text;
  }
  for (const char* text : {"0", "off", "FALSE", "no"}) {
    bool value = true;
    EXPECT_TRUE(parse_value(text, kAny, &value)) << text;
    EXPECT_FALSE(value) << text;
  }
  for (const char* text : {"", "2", "-1", "01", "y", "enable", "on off"}) {
    bool value = true;
    EXPECT_FALSE(parse_value(text, kAny, &value)) << text;
    EXPECT_TRUE(value) << text;
  }
}

TEST(Enumeration, TakesItsNamesInAnyCase) {
  Backend backend = Backend::automatic;
  EXPECT_TRUE(parse_value("Malloc", kAny, &backend));
  EXPECT_EQ(backend, Backend::malloc);
  EXPECT_FALSE(parse_value("mallocs", kAny, &backend));
  EXPECT_FALSE(parse_value("automatic", kAny, &backend)) << "the enumerator's name is not the text";
  EXPECT_FALSE(parse_value("", kAny, &backend));
  EXPECT_EQ(backend, Backend::malloc);
  EXPECT_EQ(names_of<Backend>(), "auto, pool or malloc");
  EXPECT_EQ(names_of<FreeMode>(), "auto, ordered or sync");
  EXPECT_STREQ(text_of(Pool::device_default), "default");
}

TEST(Formats, AreAListAndOffStandsAlone) {
  StatsFormats formats;
  EXPECT_TRUE(parse_value("json , TEXT", kAny, &formats));
  EXPECT_TRUE(formats.contains(StatsFormat::text));
  EXPECT_TRUE(formats.contains(StatsFormat::json));
  EXPECT_TRUE(parse_value("json", kAny, &formats));
  EXPECT_FALSE(formats.contains(StatsFormat::text)) << "the list replaces, it does not add";
  EXPECT_TRUE(parse_value("off", kAny, &formats));
  EXPECT_TRUE(formats.off());
  for (const char* text : {"", ",", "text,", "text,off", "xml", "text json"}) {
    StatsFormats untouched{2};
    EXPECT_FALSE(parse_value(text, kAny, &untouched)) << text;
    EXPECT_EQ(untouched.bits, 2u) << text;
  }
}

TEST(Share, IsAllNoneOrOneInSoMany) {
  Sampling share{7};
  EXPECT_TRUE(parse_value("0", kAny, &share));
  EXPECT_EQ(share.one_in, 0u);
  EXPECT_TRUE(parse_value("1", kAny, &share));
  EXPECT_EQ(share.one_in, 1u);
  EXPECT_TRUE(parse_value("1/64", kAny, &share));
  EXPECT_EQ(share.one_in, 64u);
  for (const char* text : {"", "2", "1/", "1/0", "2/64", "1/-1", "1/64/2", "1/1000001", "0.5"}) {
    EXPECT_FALSE(parse_value(text, kAny, &share)) << text;
  }
  EXPECT_EQ(share.one_in, 64u);
}

TEST(SiteSamplingValue, IsOffOnOrAnInterval) {
  SiteSampling sites{7};
  EXPECT_TRUE(parse_value("0", kAny, &sites));
  EXPECT_EQ(sites.interval_bytes, 0u);
  EXPECT_TRUE(parse_value("on", kAny, &sites));
  EXPECT_EQ(sites.interval_bytes, 512u << 10);
  EXPECT_TRUE(sites.is_paced);
  EXPECT_TRUE(parse_value("4M", kAny, &sites));
  EXPECT_EQ(sites.interval_bytes, 4u << 20);
  EXPECT_FALSE(sites.is_paced);
  for (const char* text : {"", "1B", "0M", "5%", "2T", "-2", "fast"}) {
    EXPECT_FALSE(parse_value(text, kAny, &sites)) << text;
  }
  EXPECT_EQ(sites.interval_bytes, 4u << 20);
}

TEST(Signal, IsANameOrANumberThatCanBeHandled) {
  const auto number_of = [](const char* text) {
    SignalNumber signal{-1};
    return parse_value(text, kAny, &signal) ? signal.value : -1;
  };
  EXPECT_EQ(number_of("USR1"), SIGUSR1);
  EXPECT_EQ(number_of("sigusr2"), SIGUSR2);
  EXPECT_EQ(number_of(std::to_string(SIGUSR2).c_str()), SIGUSR2);
  EXPECT_EQ(number_of(std::to_string(SIGRTMAX).c_str()), SIGRTMAX);
  EXPECT_EQ(number_of("none"), 0);
  for (const char* text : {"", "0", "SIG", "USR3", "KILL", "9", "STOP", "SEGV", "11", "CHLD", "32",
                           "65", "-10", "10x", "SIGSIGUSR1", "sig10"}) {
    EXPECT_EQ(number_of(text), -1) << text;
  }
}

TEST(Number, KeepsToItsRange) {
  const Range range{10, 60};
  Count count = 7;
  EXPECT_FALSE(parse_value("9", range, &count));
  EXPECT_FALSE(parse_value("61", range, &count));
  EXPECT_FALSE(parse_value("-10", range, &count));
  EXPECT_FALSE(parse_value("10K", range, &count));
  EXPECT_EQ(count, 7u);
  EXPECT_TRUE(parse_value("10", range, &count));
  EXPECT_EQ(count, 10u);
  EXPECT_TRUE(parse_value("60", range, &count));
  EXPECT_EQ(count, 60u);
  Milliseconds time{0};
  EXPECT_TRUE(parse_value("60", range, &time));
  EXPECT_EQ(time, std::chrono::milliseconds(60));
  EXPECT_FALSE(parse_value("9223372036854775808", kAny, &time));
  for (const auto& [text, ms] : {std::pair<const char*, int>{"250", 250},
                                 {"250ms", 250},
                                 {"2 s", 2000},
                                 {"2S", 2000},
                                 {"1min", 60'000},
                                 {"0", 0}}) {
    EXPECT_TRUE(parse_value(text, kAny, &time)) << text;
    EXPECT_EQ(time, std::chrono::milliseconds(ms)) << text;
  }
  for (const char* text : {"", "ms", "1.5s", "-1", "1h", "1 m s", "9223372036854775807s"}) {
    EXPECT_FALSE(parse_value(text, kAny, &time)) << text;
  }
  EXPECT_FALSE(parse_value("1s", range, &time)) << "beyond 60 ms";
  EXPECT_EQ(TypeText<Milliseconds>::accepted(range), "10 to 60 ms");
}

}  // namespace
}  // namespace cupool::config
