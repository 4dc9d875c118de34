// SPDX-License-Identifier: Apache-2.0
// `cupool options` and `--version`: the table as the library has it, and errors that help.
#include "command.h"
#include "config/settings.h"

namespace cli {
namespace {

using preload::ProcessResult;

TEST(Options, TextNamesEveryOptionUnderItsSection) {
  const ProcessResult result = cupool({"options"});
  EXPECT_EQ(result.exit_code, 0) << result.describe();
  std::size_t at = 0;
  std::string section;
  for (const cupool::config::Row& row : cupool::config::rows()) {
    if (section != row.section) {
      section = row.section;
      at = result.out.find(section + "\n", at);
      ASSERT_NE(at, std::string::npos) << section;
    }
    at = result.out.find("  " + std::string(row.name) + "\n", at);
    ASSERT_NE(at, std::string::npos) << row.name << "\n" << result.out;
  }
}

TEST(Options, MarkdownIsTheTableOfTheDocuments) {
  const ProcessResult result = cupool({"options", "--markdown"});
  const std::string document =
      preload::read_file(std::string(CUPOOL_TEST_SOURCE_FOLDER) + "/docs/options.md");
  EXPECT_NE(document.find("<!-- options:begin -->\n\n" + result.out + "\n<!-- options:end -->"),
            std::string::npos)
      << result.describe();
}

TEST(Options, JsonHasEveryOption) {
  const ProcessResult result = cupool({"options", "--json"});
  const nlohmann::json answer = nlohmann::json::parse(result.out, nullptr, false);
  ASSERT_TRUE(answer.is_object()) << result.describe();
  EXPECT_EQ(answer.at("schema_version"), 1);
  std::size_t i = 0;
  for (const cupool::config::Row& row : cupool::config::rows()) {
    const nlohmann::json& option = answer.at("options").at(i++);
    EXPECT_EQ(option.at("name"), row.name);
    EXPECT_EQ(option.at("default"), row.default_text);
    EXPECT_EQ(option.at("accepts"), row.accepted());
    EXPECT_EQ(option.at("section"), row.section);
    EXPECT_EQ(option.at("meaning"), row.documentation);
  }
  EXPECT_EQ(answer.at("options").size(), i);
}

TEST(Options, ExplainsOneByAnyOfItsNames) {
  const ProcessResult result = cupool({"options", "CUPOOL_FREE_MODE"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_NE(result.out.find("takes      auto, ordered or sync\n"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("default    auto\n"), std::string::npos) << result.out;
  EXPECT_EQ(cupool({"options", "free-mode"}).out, result.out);
  EXPECT_EQ(nlohmann::json::parse(cupool({"options", "--json", "cupool_free_mode"}).out).at("flag"),
            "--free-mode");
}

TEST(Options, AnUnknownNameGivesTheNearest) {
  const ProcessResult result = cupool({"options", "CUPOOL_FREE_MOD"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.err,
            "cupool: CUPOOL_FREE_MOD is not an option of cupool. Did you mean CUPOOL_FREE_MODE?\n");
  // In the form of an option of `cupool run`, the answer has that form too.
  EXPECT_EQ(cupool({"options", "free-mod"}).err,
            "cupool: free-mod is not an option of cupool. Did you mean free-mode?\n");
  EXPECT_EQ(cupool({"options", "--free-mode"}).err,
            "cupool: cupool options has no option --free-mode. Did you mean cupool options "
            "free-mode?\nSee: cupool options --help\n");
}

TEST(Options, AreFoundByAPartOfTheirNameAndInAnyForm) {
  const std::string expected = cupool({"options", "CUPOOL_FREE_MODE"}).out;
  for (const char* name : {"FREE_MODE", "free_mode", "Free-Mode"}) {
    EXPECT_EQ(cupool({"options", name}).out, expected) << name;
  }
  EXPECT_EQ(cupool({"options", "pending"}).err,
            "cupool: pending is not an option of cupool. Did you mean max-pending?\n");
  EXPECT_EQ(cupool({"options", "nothing-like-it"}).err,
            "cupool: nothing-like-it is not an option of cupool. cupool options lists all\n");
}

TEST(Options, GivenBySetAreCorrectedToo) {
  const struct {
    const char* set;
    const char* told;
  } rows[] = {
      {"FOO=1", "--set takes CUPOOL_NAME=VALUE, not FOO=1. cupool options lists all"},
      {"FREE_MODE=sync", "not FREE_MODE=sync. Did you mean CUPOOL_FREE_MODE=sync?"},
      {"free-mod=sync", "not free-mod=sync. Did you mean CUPOOL_FREE_MODE?"},
      {"CUPOOL_FOOBAR=1", "CUPOOL_FOOBAR is not an option of cupool. cupool options lists all"},
      {"CUPOOL_PENDING=1",
       "CUPOOL_PENDING is not an option of cupool. Did you mean "
       "CUPOOL_MAX_PENDING?"},
      {"CUPOOL_IPC", "--set takes CUPOOL_NAME=VALUE, not CUPOOL_IPC: a value is missing"}};
  for (const auto& row : rows) {
    const ProcessResult result = cupool({"run", "--set", row.set, "true"});
    EXPECT_EQ(result.exit_code, 2) << result.describe();
    EXPECT_NE(result.err.find(row.told), std::string::npos) << result.err;
  }
}

TEST(Command, SaysItsVersion) {
  const ProcessResult result = cupool({"--version"});
  EXPECT_EQ(result.exit_code, 0) << result.describe();
  EXPECT_EQ(result.out.rfind("cupool " CUPOOL_VERSION " (", 0), 0u) << result.out;
  EXPECT_NE(result.out.find("built for CUDA "), std::string::npos) << result.out;
}

TEST(Command, HelpGoesToStandardOutputAndErrorsDoNot) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--help"}, {"run", "--help"}, {"options", "-h"}}) {
    const ProcessResult help = cupool(arguments);
    EXPECT_EQ(help.exit_code, 0) << help.describe();
    EXPECT_NE(help.out.find("Usage: "), std::string::npos) << help.out;
    EXPECT_EQ(help.err, "");
  }
  EXPECT_NE(cupool({"run", "--help"}).out.find("[--] PROGRAM [ARGUMENTS...]"), std::string::npos);
  const ProcessResult wrong = cupool({"--no-such"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_EQ(wrong.out, "");
  EXPECT_NE(wrong.err.find("--help"), std::string::npos) << wrong.err;
}

TEST(Command, AMisspeltCommandGivesTheNearest) {
  const ProcessResult result = cupool({"rnu", "./program"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.err,
            "cupool: cupool has no command rnu. Did you mean run?\nSee: cupool --help\n");
}

// `help` is a command within a command.
TEST(Command, AFullDiskIsToldOnce) {
  if (const char* reason = reason_without_shell()) GTEST_SKIP() << reason;
  preload::Command command;
  command.argv = {"/bin/sh", "-c", tested_command() + " help run >/dev/full"};
  command.environment = environment();
  const ProcessResult result = preload::run(command);
  EXPECT_EQ(result.exit_code, 2) << result.describe();
  EXPECT_EQ(result.err, "cupool: cannot write: No space left on device\n");
}

TEST(Command, AFullDiskIsNoSuccess) {
  if (const char* reason = reason_without_shell()) GTEST_SKIP() << reason;
  preload::Command command;
  // Not 1, the answer that results differ.
  for (const char* words : {" options", " compare -n 1 /bin/true"}) {
    command.argv = {"/bin/sh", "-c", tested_command() + words + " >/dev/full"};
    command.environment = environment();
    const ProcessResult result = preload::run(command);
    EXPECT_EQ(result.exit_code, 2) << result.describe();
    EXPECT_NE(result.err.find("cannot write"), std::string::npos) << result.err;
  }
}

}  // namespace
}  // namespace cli
