// SPDX-License-Identifier: Apache-2.0
// Layout only.
#include "cli/shell/options_text.h"

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

}  // namespace

std::string flag_of(const config::Row& row) {
  std::string flag = "--" + util::to_lower(row.name + kPrefix);
  for (char& c : flag) c = c == '_' ? '-' : c;
  return flag;
}

const config::Row* find_row(const std::string& name) {
  const std::string lower = util::to_lower(name);
  for (const config::Row& row : config::rows()) {
    const std::string flag = flag_of(row);
    if (lower == util::to_lower(row.name) || lower == flag || "--" + lower == flag) return &row;
  }
  return nullptr;
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
