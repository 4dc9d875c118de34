// SPDX-License-Identifier: Apache-2.0
// What an option takes is known from the name of its value in --help, and for settings from the
// library's own table.
#include "cli/reference/command_table.h"

#include <algorithm>
#include <filesystem>

#include "cli/shell/library.h"
#include "cli/shell/options_text.h"
#include "util/text.h"

namespace cupool::cli {

namespace {

// The parts of "auto, ordered or sync" and "1 or 0".
std::vector<std::string> names_in(const std::string& accepted) {
  std::vector<std::string> names;
  for (const std::string_view part : util::split(accepted, ',')) {
    const std::size_t last = part.find(" or ");
    names.emplace_back(part.substr(0, last));
    if (last != std::string_view::npos) names.emplace_back(part.substr(last + 4));
  }
  return names;
}

std::vector<std::string> profile_names() {
  std::vector<std::string> names;
  for (const std::string& folder : profile_folders()) {
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
      if (entry.path().extension() == ".env") names.push_back(entry.path().stem().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

void describe_setting(const config::Row& row, OptionEntry* entry) {
  entry->variable = row.name;
  const std::string type = row.type_name;
  if (entry->variable == "CUPOOL_PROFILE") {
    entry->choices = profile_names();
    entry->takes_file = true;
  } else if (type == "name" || type == "boolean") {
    entry->choices = names_in(row.accepted());
  } else if (type == "list") {
    entry->choices = {"text", "full", "json", "csv", "prometheus", "off"};
  } else if (entry->variable != "CUPOOL_BYPASS_LIBS") {
    entry->takes_file = type == "path";
  }
}

// Choices by the name of the value.
void describe_value(const CLI::App& app, OptionEntry* entry) {
  entry->takes_file = entry->value == "FILE";
  if (entry->value.find('|') != std::string::npos) {
    for (const std::string_view word : util::split(entry->value, '|')) {
      entry->choices.emplace_back(word);
    }
  } else if (entry->value == "COMMAND") {
    for (const CLI::App* command : app.get_subcommands({})) {
      entry->choices.push_back(command->get_name());
    }
  } else if (entry->value == "OPTION" || entry->value == "CUPOOL_X=VALUE") {
    const char* const end = entry->value == "OPTION" ? "" : "=";
    for (const config::Row& row : config::rows())
      entry->choices.push_back(row.name + std::string(end));
  }
}

OptionEntry entry_of(const CLI::App& app, const CLI::Option& option) {
  OptionEntry entry;
  for (const std::string& name : option.get_snames()) entry.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) entry.names.push_back("--" + name);
  entry.description = option.get_description();
  entry.required = option.get_required();
  entry.repeated = option.get_items_expected_max() > 1;
  if (option.get_items_expected_max() > 0) {
    const std::string type = option.get_type_name();
    entry.value = type.substr(0, type.find(':'));  // behind it CLI11 has the range
  }
  const config::Row* const row = entry.names.empty() ? nullptr : find_row(entry.names.back());
  if (row != nullptr && option.get_group().rfind("Settings: ", 0) == 0) {
    describe_setting(*row, &entry);
  } else {
    describe_value(app, &entry);
  }
  return entry;
}

// The visible options of `of` as operands or not.
std::vector<OptionEntry> entries_of(const CLI::App& app, const CLI::App& of, bool operands) {
  std::vector<OptionEntry> entries;
  for (const CLI::Option* option : of.get_options()) {
    if (option->get_group().empty() || option->get_positional() != operands) continue;
    entries.push_back(entry_of(app, *option));
  }
  return entries;
}

}  // namespace

CommandTable command_table(const CLI::App& app,
                           const std::function<ProgramWords(const std::string&)>& program_words) {
  CommandTable table;
  table.description = app.get_description();
  table.options = entries_of(app, app, false);
  for (const CLI::App* command : app.get_subcommands({})) {
    CommandEntry entry;
    entry.name = command->get_name();
    entry.description = command->get_description();
    if (command->get_footer() != app.get_footer())
      entry.footer = command->get_footer();  // inherited
    entry.program = program_words(entry.name);
    entry.options = entries_of(app, *command, false);
    entry.operands = entries_of(app, *command, true);
    table.commands.push_back(entry);
  }
  return table;
}

std::string first_sentence(const std::string& description) {
  const std::size_t end = std::min(description.find(". "), description.find("; "));
  std::string sentence = description.substr(0, end);
  if (!sentence.empty() && sentence.back() == '.') sentence.pop_back();
  return sentence;
}

}  // namespace cupool::cli
