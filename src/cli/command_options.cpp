// SPDX-License-Identifier: Apache-2.0
// `cupool options`: the library's own table of options.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/shell/options_text.h"

namespace cupool::cli {

namespace {

struct OptionsArguments {
  std::string name;
  bool markdown = false;
  bool json = false;
};

nlohmann::ordered_json json_of(const config::Row& row) {
  return {{"name", row.name},
          {"flag", flag_of(row)},
          {"type", row.type_name},
          {"default", row.default_text},
          {"accepts", row.accepted()},
          {"section", row.section},
          {"meaning", row.documentation}};
}

const config::Row& wanted_row(const std::string& name) {
  if (const config::Row* row = find_row(name)) return *row;
  throw UsageError(name + " is not an option of cupool" + nearest_option(name, false));
}

std::string all_as_json() {
  nlohmann::ordered_json options = nlohmann::ordered_json::array();
  for (const config::Row& row : config::rows()) options.push_back(json_of(row));
  return nlohmann::ordered_json{{"schema_version", 1}, {"options", options}}.dump(2) + "\n";
}

int act(const OptionsArguments& arguments) {
  std::string text;
  if (!arguments.name.empty()) {
    const config::Row& row = wanted_row(arguments.name);
    text = arguments.json ? json_of(row).dump(2) + "\n" : option_as_text(row);
  } else if (arguments.json) {
    text = all_as_json();
  } else {
    text = arguments.markdown ? options_as_markdown() : options_as_text();
  }
  std::fputs(text.c_str(), stdout);
  return exit_ok;
}

}  // namespace

void add_options(CLI::App& app, Session& session) {
  const auto arguments = std::make_shared<OptionsArguments>();
  CLI::App* command =
      add_command(app, session, "options", "List all options of the library, or explain one.",
                  ProgramWords::none, [arguments](Session&) { return act(*arguments); });
  command
      ->add_option("option", arguments->name,
                   "The option to explain: CUPOOL_FREE_MODE or free-mode")
      ->type_name("OPTION");
  CLI::Option* markdown =
      command->add_flag("--markdown", arguments->markdown, "Print the tables of docs/options.md");
  command->add_flag("--json", arguments->json, "Print JSON")->excludes(markdown);
}

}  // namespace cupool::cli
