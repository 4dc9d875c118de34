// SPDX-License-Identifier: Apache-2.0
// Layout only.
#include "cli/shell/options_text.h"

#include <algorithm>

#include "util/text.h"

namespace cupool::cli {

namespace {

constexpr std::size_t kPrefix = 7;  // "CUPOOL_"
constexpr std::size_t kTextWidth = 96;

// Escapes bars, which would end a table cell.
std::string cell(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '|') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

std::string default_of(const config::Row& row) {
  return row.default_text[0] == '\0' ? "(none)" : row.default_text;
}

// Wraps `text` to kTextWidth with `indent` blanks before each line; a longer word gets its own
// line.
std::string wrapped(const std::string& text, std::size_t indent) {
  std::string result;
  std::string line;
  for (const std::string_view word : util::split(text, ' ')) {
    if (!line.empty() && indent + line.size() + 1 + word.size() > kTextWidth) {
      result += std::string(indent, ' ') + line + "\n";
      line.clear();
    }
    line += (line.empty() ? "" : " ") + std::string(word);
  }
  return result + std::string(indent, ' ') + line + "\n";
}

constexpr const char* kLowerPrefix = "cupool_";
// A part of a name that says which option is meant, and how many are named then.
constexpr std::size_t kShortestPart = 3;
constexpr std::size_t kMostNear = 3;

bool is_variable(const std::string& name) {
  return util::starts_with(util::to_lower(name), kLowerPrefix);
}

// "free-mode" for CUPOOL_FREE_MODE, free_mode and --free-mode, in any case.
std::string bare_name(const std::string& name) {
  std::string bare = util::to_lower(name);
  bare.erase(0, is_variable(name) ? kPrefix : std::min(bare.find_first_not_of('-'), bare.size()));
  std::replace(bare.begin(), bare.end(), '_', '-');
  return bare;
}

}  // namespace

std::string flag_of(const config::Row& row) {
  std::string flag = "--" + util::to_lower(row.name + kPrefix);
  for (char& c : flag) c = c == '_' ? '-' : c;
  return flag;
}

const config::Row* find_row(const std::string& name) {
  for (const config::Row& row : config::rows()) {
    if (bare_name(name) == bare_name(row.name)) return &row;
  }
  return nullptr;
}

std::string nearest_option(const std::string& name, bool as_variable) {
  const std::string bare = bare_name(name);
  std::vector<std::string> names;
  for (const config::Row& row : config::rows()) names.push_back(bare_name(row.name));
  std::vector<std::string> near;
  const std::string_view closest =
      util::closest(bare, std::vector<std::string_view>(names.begin(), names.end()));
  if (!closest.empty()) near.emplace_back(closest);
  for (const std::string& known : names) {
    const bool part = bare.size() >= kShortestPart && known.find(bare) != std::string::npos;
    if (closest.empty() && part && near.size() < kMostNear) near.push_back(known);
  }
  if (near.empty()) return ". cupool options lists all";
  std::string text;
  for (std::size_t i = 0; i < near.size(); ++i) {
    const bool variable = as_variable || is_variable(name);
    const char* const separator = i == 0 ? ". Did you mean " : i + 1 == near.size() ? " or " : ", ";
    text += separator + (variable ? std::string(find_row(near[i])->name) : near[i]);
  }
  return text + "?";
}

std::string options_as_text() {
  std::string text;
  std::string section;
  for (const config::Row& row : config::rows()) {
    if (section != row.section) {
      section = row.section;
      text += (text.empty() ? "" : "\n") + section + "\n";
    }
    text += "  " + std::string(row.name) + "\n" + wrapped(row.documentation, 6) +
            wrapped("Takes " + row.accepted() + ". Default: " + default_of(row), 6);
  }
  return text;
}

std::string option_as_text(const config::Row& row) {
  return std::string(row.name) + "\n" + wrapped(row.documentation, 2) + "\n" + "  takes      " +
         row.accepted() + "\n" +                     //
         "  default    " + default_of(row) + "\n" +  //
         "  set with   " + row.name + "=VALUE or `cupool run " + flag_of(row) + " VALUE`\n";
}

std::string options_as_markdown() {
  std::string text;
  std::string section;
  for (const config::Row& row : config::rows()) {
    if (section != row.section) {
      text += section.empty() ? "" : "\n";
      section = row.section;
      text +=
          "**" + section + "**\n\n| variable | default | accepts | meaning |\n|---|---|---|---|\n";
    }
    const std::string value =
        row.default_text[0] == '\0' ? "(none)" : "`" + std::string(row.default_text) + "`";
    text += "| `" + std::string(row.name) + "` | " + value + " | " + cell(row.accepted()) + " | " +
            cell(row.documentation) + " |\n";
  }
  return text;
}

}  // namespace cupool::cli
