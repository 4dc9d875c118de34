// SPDX-License-Identifier: Apache-2.0
// From an environment to settings: defaults, origins, warnings, profiles.
#include "config/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "temporary_folder.h"

namespace cupool::config {
namespace {

using test::TemporaryFolder;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

struct Parsed {
  Settings settings;
  std::vector<std::string> warnings;
  std::map<std::string, EffectiveValue> values;
};

Parsed parsed(const std::vector<std::string>& variables) {
  std::vector<const char*> environment;
  for (const std::string& variable : variables) environment.push_back(variable.c_str());
  environment.push_back(nullptr);
  Parsed result;
  std::vector<EffectiveValue> effective;
  result.settings = parse(environment.data(), &result.warnings, &effective);
  for (const EffectiveValue& value : effective) result.values[value.name] = value;
  return result;
}

// I2: none of them lets a pool wait.
TEST(Settings, AnEmptyEnvironmentGivesTheDefaults) {
  const Parsed got = parsed({"PATH=/bin", "HOME=/root"});
  EXPECT_THAT(got.warnings, IsEmpty());
  EXPECT_TRUE(got.settings.enable);
  EXPECT_EQ(got.settings.free_mode, FreeMode::automatic);
  EXPECT_EQ(got.settings.max_pending.resolve(1000), 20u);
  EXPECT_EQ(got.settings.backend, Backend::automatic);
  EXPECT_EQ(got.settings.pool, Pool::private_pool);
  EXPECT_EQ(got.settings.release_threshold.resolve(1000), 1000u);
  EXPECT_EQ(got.settings.max_size.resolve(1000), 0u);
  EXPECT_EQ(got.settings.prealloc.resolve(1000), 0u);
  EXPECT_EQ(got.settings.max_block.resolve(1000), 1000u);
  EXPECT_EQ(got.settings.max_cached.resolve(1000), 1000u);
  EXPECT_TRUE(got.settings.reuse_follow_event_dependencies);
  EXPECT_TRUE(got.settings.reuse_allow_opportunistic);
  EXPECT_FALSE(got.settings.reuse_allow_internal_dependencies) << "I2";
  EXPECT_TRUE(got.settings.stats.contains(StatsFormat::text));
  EXPECT_FALSE(got.settings.stats.contains(StatsFormat::json));
  EXPECT_EQ(got.settings.stats_file, "");
  EXPECT_EQ(got.settings.stats_interval.count(), 0);
  EXPECT_EQ(got.settings.log_level, LogLevel::warn);
  EXPECT_EQ(got.settings.log_file, "");
}

TEST(Settings, MaxPendingGrowsUnlessTheUserSetsIt) {
  EXPECT_TRUE(parsed({}).settings.max_pending.grows);
  EXPECT_TRUE(parsed({"CUPOOL_MAX_PENDING=Auto"}).settings.max_pending.grows);
  for (const char* set : {"CUPOOL_MAX_PENDING=20", "CUPOOL_MAX_PENDING=2%"}) {
    const Settings settings = parsed({set}).settings;
    EXPECT_FALSE(settings.max_pending.grows);
    EXPECT_EQ(settings.max_pending.resolve(1000), 20u);
  }
  const Parsed wrong = parsed({"CUPOOL_MAX_PENDING=automatic"});
  EXPECT_TRUE(wrong.settings.max_pending.grows);
  EXPECT_THAT(wrong.warnings, ElementsAre(HasSubstr("it takes auto, a size")));
}

TEST(Settings, PreallocTakesASizeAndBackground) {
  EXPECT_FALSE(parsed({"CUPOOL_PREALLOC=10%"}).settings.prealloc.background);
  for (const char* text : {"CUPOOL_PREALLOC=10%,background", "CUPOOL_PREALLOC= 10% , Background"}) {
    const Parsed got = parsed({text});
    EXPECT_THAT(got.warnings, IsEmpty());
    EXPECT_TRUE(got.settings.prealloc.background);
    EXPECT_EQ(got.settings.prealloc.resolve(1000), 100u);
  }
  for (const char* text : {"background", "10%,", "10%,foreground", "10%,background,background"}) {
    const Parsed got = parsed({std::string("CUPOOL_PREALLOC=") + text});
    EXPECT_THAT(got.warnings, ElementsAre(HasSubstr("also with \",background\""))) << text;
    EXPECT_EQ(got.settings.prealloc.resolve(1000), 0u);
  }
}

TEST(Settings, AFormerNameIsTakenWithAWarningThatNamesItsNewForm) {
  for (const bool before : {false, true}) {
    const char* const former = "CUPOOL_PREALLOC_BACKGROUND=1";
    const Parsed got =
        before ? parsed({former, "CUPOOL_PREALLOC=1G"}) : parsed({"CUPOOL_PREALLOC=1G", former});
    EXPECT_TRUE(got.settings.prealloc.background);
    EXPECT_THAT(got.warnings, ElementsAre(HasSubstr("write CUPOOL_PREALLOC=SIZE,background")));
    EXPECT_EQ(got.values.at("CUPOOL_PREALLOC").value, "1G,background");
  }
  const Parsed off = parsed({"CUPOOL_PREALLOC=1G", "CUPOOL_PREALLOC_BACKGROUND=0"});
  EXPECT_FALSE(off.settings.prealloc.background);
  EXPECT_THAT(off.warnings, ElementsAre(HasSubstr("has become a value of CUPOOL_PREALLOC")));
  const Parsed bad = parsed({"CUPOOL_PREALLOC_BACKGROUND=often"});
  EXPECT_FALSE(bad.settings.prealloc.background);
  EXPECT_THAT(bad.warnings, ElementsAre(HasSubstr("is not understood")));
}

TEST(Settings, NullsAreAllowed) {
  EXPECT_TRUE(parse(nullptr, nullptr, nullptr).enable);
  const char* const environment[] = {"CUPOOL_ENABLE=perhaps", nullptr};
  EXPECT_TRUE(parse(environment, nullptr, nullptr).enable);
}

TEST(Settings, OfASecureProcessAreDefaultsAndDisabled) {
  const test::ScopedVariable file("CUPOOL_STATS_FILE", "/somewhere");
  std::vector<EffectiveValue> effective;
  const Settings settings = secure_settings(&effective);
  EXPECT_FALSE(settings.enable);
  EXPECT_EQ(settings.stats_file, "");
  for (const EffectiveValue& value : effective) EXPECT_EQ(value.origin, Origin::builtin);
}

TEST(Settings, TheEnvironmentIsTakenAndBlanksAroundItAreNot) {
  const Parsed got = parsed({"CUPOOL_BACKEND= malloc ", "CUPOOL_MAX_BLOCK=\t64K\n",
                             "CUPOOL_STATS_FILE=/tmp/a b.txt", "CUPOOL_ENABLE=off"});
  EXPECT_THAT(got.warnings, IsEmpty());
  EXPECT_EQ(got.settings.backend, Backend::malloc);
  EXPECT_EQ(got.settings.max_block.value, 65536u);
  EXPECT_EQ(got.settings.stats_file, "/tmp/a b.txt");
  EXPECT_FALSE(got.settings.enable);
}

TEST(Settings, EffectiveValuesTellTheOrigin) {
  const Parsed got = parsed({"CUPOOL_BACKEND=malloc", "CUPOOL_POOL=private"});
  EXPECT_EQ(got.values.at("CUPOOL_BACKEND").value, "malloc");
  EXPECT_EQ(got.values.at("CUPOOL_BACKEND").origin, Origin::environment);
  EXPECT_FALSE(got.values.at("CUPOOL_BACKEND").is_default);
  EXPECT_EQ(got.values.at("CUPOOL_POOL").origin, Origin::environment);
  EXPECT_TRUE(got.values.at("CUPOOL_POOL").is_default) << "the default, written out";
  EXPECT_EQ(got.values.at("CUPOOL_MAX_BLOCK").value, "100%");
  EXPECT_EQ(got.values.at("CUPOOL_MAX_BLOCK").origin, Origin::builtin);
  EXPECT_STREQ(text_of(Origin::builtin), "default");
  EXPECT_STREQ(text_of(Origin::environment), "environment");
  EXPECT_STREQ(text_of(Origin::profile), "profile");
}

TEST(Settings, ABadValueGivesOneWarningWithTheCureAndKeepsTheDefault) {
  const Parsed got = parsed({"CUPOOL_BACKEND=pools"});
  EXPECT_THAT(got.warnings, ElementsAre("CUPOOL_BACKEND=\"pools\" is not understood: it takes "
                                        "auto, pool or malloc; keeping auto"));
  EXPECT_EQ(got.settings.backend, Backend::automatic);
  EXPECT_EQ(got.values.at("CUPOOL_BACKEND").value, "auto");
  EXPECT_EQ(got.values.at("CUPOOL_BACKEND").origin, Origin::builtin);
}

TEST(Settings, EveryFreeModeIsTaken) {
  EXPECT_EQ(parsed({"CUPOOL_FREE_MODE=ordered"}).settings.free_mode, FreeMode::ordered);
  EXPECT_EQ(parsed({"CUPOOL_FREE_MODE=sync"}).settings.free_mode, FreeMode::sync);
  EXPECT_THAT(parsed({"CUPOOL_FREE_MODE=never"}).warnings,
              ElementsAre(HasSubstr("auto, ordered or sync; keeping auto")));
}

TEST(Settings, EveryBadSizeIsNamedWithWhatIsAccepted) {
  for (const char* bad : {"99999999999T", "-3", "101%", "banana"}) {
    const Parsed got = parsed({std::string("CUPOOL_MAX_CACHED=") + bad});
    EXPECT_THAT(got.warnings, ElementsAre(AllOf(HasSubstr(bad), HasSubstr("0% to 100%"),
                                                HasSubstr("K, M, G or T"))));
    EXPECT_EQ(got.settings.max_cached.resolve(1000), 1000u) << bad;
  }
}

TEST(Settings, AnEmptyValueIsBadButForPaths) {
  const Parsed got = parsed({"CUPOOL_MAX_SIZE=", "CUPOOL_POOL=   ", "CUPOOL_STATS_FILE="});
  EXPECT_THAT(got.warnings, ElementsAre(AllOf(HasSubstr("CUPOOL_MAX_SIZE"), HasSubstr("is empty")),
                                        AllOf(HasSubstr("CUPOOL_POOL"), HasSubstr("is empty"))));
  EXPECT_EQ(got.values.at("CUPOOL_STATS_FILE").origin, Origin::environment);
}

TEST(Settings, AMisspeltNameIsPointedOut) {
  EXPECT_THAT(parsed({"CUPOOL_FREE_MOED=sync"}).warnings,
              ElementsAre("CUPOOL_FREE_MOED is not an option of cupool; ignored. "
                          "Did you mean CUPOOL_FREE_MODE?"));
  EXPECT_THAT(parsed({"CUPOOL_RELEASE_TRESHOLD=1G"}).warnings,
              ElementsAre(HasSubstr("CUPOOL_RELEASE_THRESHOLD")));
  EXPECT_THAT(parsed({"CUPOOL_QUITE_SOMETHING_ELSE_ALTOGETHER=1"}).warnings,
              ElementsAre(AllOf(HasSubstr("is not an option"), Not(HasSubstr("Did you mean")))));
}

TEST(Settings, NamesAreExact) {
  const Parsed got = parsed({"CUPOOL_BACKENDS=malloc", "cupool_backend=malloc"});
  EXPECT_EQ(got.settings.backend, Backend::automatic);
  EXPECT_THAT(got.warnings, ElementsAre(HasSubstr("Did you mean CUPOOL_BACKEND?")));
}

TEST(Settings, VariablesOfTheTestsAreNotOptions) {
  EXPECT_THAT(
      parsed({"CUPOOL_SIM_DEVICES=2", "CUPOOL_TEST_X=1", "CUPOOL_LIBRARY=/lib/x.so", "CUPOOLISH=1"})
          .warnings,
      IsEmpty());
}

TEST(Settings, TheFirstOfEqualNamesCounts) {
  const Parsed got = parsed({"CUPOOL_BACKEND=malloc", "CUPOOL_BACKEND=pool"});
  EXPECT_EQ(got.settings.backend, Backend::malloc);
}

TEST(Settings, OddEntriesOfAnEnvironmentAreHarmless) {
  const Parsed got = parsed({"CUPOOL_BACKEND", "=", "", "CUPOOL_=1", "CUPOOL_LOG_FILE=a=b"});
  EXPECT_EQ(got.settings.log_file, "a=b");
  EXPECT_THAT(got.warnings, ElementsAre(HasSubstr("CUPOOL_ is not an option")));
}

TEST(Settings, AWarningIsOnePrintableLineOfBoundedLength) {
  const Parsed got = parsed({"CUPOOL_BACKEND=a\nb\x1b[31m" + std::string(5000, 'z')});
  ASSERT_EQ(got.warnings.size(), 1u);
  EXPECT_THAT(got.warnings[0],
              AllOf(HasSubstr("a?b?[31m"), Not(HasSubstr("\n")), Not(HasSubstr("\x1b"))));
  EXPECT_LT(got.warnings[0].size(), 300u);
}

TEST(Settings, AListOfLeaksThatNoReportHoldsIsNamed) {
  const auto warning = ElementsAre(HasSubstr("CUPOOL_LEAKS lists nothing"));
  EXPECT_THAT(parsed({"CUPOOL_STATS=off", "CUPOOL_LEAKS=1"}).warnings, warning);
  EXPECT_THAT(parsed({"CUPOOL_STATS=csv,prometheus", "CUPOOL_LEAKS=1/64"}).warnings, warning);
  for (const char* stats : {"CUPOOL_STATS=text", "CUPOOL_STATS=csv,json"}) {
    EXPECT_THAT(parsed({stats, "CUPOOL_LEAKS=1"}).warnings, IsEmpty());
  }
  EXPECT_THAT(parsed({"CUPOOL_STATS=off", "CUPOOL_LEAKS=0"}).warnings, IsEmpty());
}

TEST(Settings, CallSitesThatNoReportHoldsAreNamed) {
  EXPECT_THAT(parsed({"CUPOOL_STATS=text", "CUPOOL_SITES=1"}).warnings,
              ElementsAre(HasSubstr("CUPOOL_SITES lists nothing")));
  EXPECT_THAT(parsed({"CUPOOL_STATS=text,json", "CUPOOL_SITES=1"}).warnings, IsEmpty());
  for (const char* stats : {"CUPOOL_STATS=json", "CUPOOL_STATS=text"}) {
    EXPECT_THAT(parsed({stats, "CUPOOL_SITES=1", "CUPOOL_MODE=observe"}).warnings,
                ElementsAre(HasSubstr("CUPOOL_MODE=observe follows no call sites")));
  }
}

class Profile : public testing::Test {
 protected:
  Parsed with(const std::string& content, std::vector<std::string> environment = {}) {
    environment.push_back("CUPOOL_PROFILE=" + folder_.write("profile", content));
    return parsed(environment);
  }
  TemporaryFolder folder_;
};

TEST_F(Profile, TakesAFormerNameWithAWarning) {
  const Parsed got = with("CUPOOL_PREALLOC_BACKGROUND=1", {"CUPOOL_PREALLOC=1G"});
  EXPECT_TRUE(got.settings.prealloc.background);
  EXPECT_THAT(got.warnings, ElementsAre(AllOf(HasSubstr("profile: CUPOOL_PREALLOC_BACKGROUND"),
                                              HasSubstr("write CUPOOL_PREALLOC=SIZE,background"))));
}

TEST_F(Profile, IsReadLikeAShellFile) {
  const Parsed got = with(
      "# throughput\n"
      "\n"
      "CUPOOL_BACKEND=malloc\n"
      "  export CUPOOL_MAX_BLOCK=64K   # small ones only\r\n"
      "export\tCUPOOL_STATS_FILE=\"/tmp/a # b\" # quoted\n"
      "CUPOOL_LOG_FILE='it'\n"
      "CUPOOL_POOL=default");
  EXPECT_THAT(got.warnings, IsEmpty());
  EXPECT_EQ(got.settings.backend, Backend::malloc);
  EXPECT_EQ(got.settings.max_block.value, 65536u);
  EXPECT_EQ(got.settings.stats_file, "/tmp/a # b");
  EXPECT_EQ(got.settings.log_file, "it");
  EXPECT_EQ(got.settings.pool, Pool::device_default) << "the last line needs no line end";
  EXPECT_EQ(got.values.at("CUPOOL_BACKEND").origin, Origin::profile);
}

TEST_F(Profile, AByteOrderMarkIsSkippedAtItsBeginningOnly) {
  const Parsed got = with(
      "\xef\xbb\xbf"
      "CUPOOL_BACKEND=malloc\n\xef\xbb\xbf"
      "CUPOOL_POOL=default\n");
  EXPECT_EQ(got.settings.backend, Backend::malloc);
  EXPECT_THAT(got.warnings, ElementsAre(HasSubstr("profile:2: not a KEY=VALUE line")));
}

TEST_F(Profile, TheEnvironmentWins) {
  const Parsed got = with("CUPOOL_BACKEND=malloc\nCUPOOL_POOL=default\n", {"CUPOOL_BACKEND=pool"});
  EXPECT_EQ(got.settings.backend, Backend::pool);
  EXPECT_EQ(got.values.at("CUPOOL_BACKEND").origin, Origin::environment);
  EXPECT_EQ(got.settings.pool, Pool::device_default);
}

TEST_F(Profile, ABadValueInTheEnvironmentKeepsTheProfiles) {
  const Parsed got = with("CUPOOL_BACKEND=malloc\n", {"CUPOOL_BACKEND=x"});
  EXPECT_EQ(got.settings.backend, Backend::malloc);
  EXPECT_THAT(got.warnings, ElementsAre(HasSubstr("keeping malloc")));
}

TEST_F(Profile, ItsFaultsAreNamedWithTheFile) {
  const Parsed got = with(
      "CUPOOL_BACKEND=x\nCUPOOL_BAKEND=pool\nLD_PRELOAD=x\nrm -rf /\n=3\n"
      "CUPOOL_PROFILE=/other\n");
  EXPECT_THAT(got.warnings,
              testing::UnorderedElementsAre(
                  AllOf(HasSubstr("profile: CUPOOL_BACKEND=\"x\""), HasSubstr("auto")),
                  AllOf(HasSubstr("profile: CUPOOL_BAKEND"), HasSubstr("CUPOOL_BACKEND?")),
                  HasSubstr("profile: LD_PRELOAD is not an option"),
                  HasSubstr("profile:4: not a KEY=VALUE line"),
                  HasSubstr("profile:5: not a KEY=VALUE line"),
                  HasSubstr("CUPOOL_PROFILE inside a profile is ignored")));
}

TEST_F(Profile, OneThatCannotBeReadGivesOneWarning) {
  EXPECT_THAT(parsed({"CUPOOL_PROFILE=/nonexistent/profile"}).warnings,
              ElementsAre("cannot read CUPOOL_PROFILE /nonexistent/profile: No such file or "
                          "directory; ignored"));
  EXPECT_THAT(parsed({"CUPOOL_PROFILE=" + folder_.file("")}).warnings,
              ElementsAre(HasSubstr("not a regular file")));
  const std::string large = folder_.write("large", std::string(3 << 20, '#'));
  EXPECT_THAT(parsed({"CUPOOL_PROFILE=" + large}).warnings,
              ElementsAre(HasSubstr("larger than 1 MiB")));
}

TEST_F(Profile, AFifoIsRefusedAndNotWaitedFor) {
  const std::string fifo = folder_.file("fifo");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(parsed({"CUPOOL_PROFILE=" + fifo}).warnings,
              ElementsAre(HasSubstr("not a regular file")));
}

// The table documents itself: what the documentation says is the default parses, and is the
// default.
TEST(OptionsTable, EveryRowIsDocumentedAndItsDefaultIsAValue) {
  std::set<std::string> names;
  for (const Row& row : rows()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name << " is listed twice";
    EXPECT_THAT(row.name, testing::StartsWith("CUPOOL_"));
    EXPECT_STRNE(row.type_name, "");
    EXPECT_STRNE(row.section, "");
    EXPECT_THAT(row.documentation, testing::EndsWith("."));
    EXPECT_FALSE(row.accepted().empty());
    const Parsed got = parsed({std::string(row.name) + "=" + row.default_text});
    EXPECT_THAT(got.warnings, IsEmpty());
    EXPECT_TRUE(got.values.at(row.name).is_default);
  }
  EXPECT_EQ(names.size(), 34u) << "an option came or went: does a test show what it does?";
}

TEST(ProcessSettings, AreParsedOnceAndGivenOutAlways) {
  const Settings& first = settings();
  EXPECT_EQ(&first, &settings());
  EXPECT_EQ(effective().size(), static_cast<std::size_t>(rows().end() - rows().begin()));
}

}  // namespace
}  // namespace cupool::config
