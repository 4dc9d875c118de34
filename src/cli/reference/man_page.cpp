// SPDX-License-Identifier: Apache-2.0
// Settings are options of several commands: they have a section of their own.
#include "cli/reference/man_page.h"

#include <algorithm>

#include "cli/shell/options_text.h"
#include "util/text.h"

namespace cupool::cli {

namespace {

// A word with what roff would read as its own: backslashes, quotes, and hyphens that must stay
// ASCII. After a comma a long list may be broken.
std::string roff(const std::string& word) {
  std::string result;
  for (std::size_t i = 0; i < word.size(); ++i) {
    const char c = word[i];
    if (c == '\\') {
      result += "\\e";
    } else if (c == '-') {
      result += "\\-";
    } else if (c == '`') {
      result += "\\(ga";
    } else if (c == '\'') {
      result += "\\(aq";
    } else {
      result += c;
    }
    if (c == ',' && i + 1 < word.size()) result += "\\:";
  }
  return result;
}

// Text as lines of the page, which roff fills. A dot that begins one would be a request.
std::string lines_of(std::string text) {
  constexpr std::size_t kLineLength = 78;
  std::string lines;
  std::string line;
  std::replace(text.begin(), text.end(), '\n', ' ');
  for (const std::string_view word : util::split(text, ' ')) {
    if (word.empty()) continue;
    const std::string escaped_word = roff(std::string(word));
    if (!line.empty() && line.size() + 1 + escaped_word.size() > kLineLength) {
      lines += line + "\n";
      line.clear();
    }
    if (!line.empty()) {
      line += ' ';
    } else if (escaped_word.front() == '.') {
      line = "\\&";
    }
    line += escaped_word;
  }
  return lines + line;
}

// An argument of a macro, for its quotes.
std::string argument(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) result += c == '"' ? "\\(dq" : roff(std::string(1, c));
  return result + "\"";
}

// "\fB\-n\fR, \fB\-\-runs\fR \fIN\fR"
std::string heading_of(const OptionEntry& option) {
  std::string text;
  for (const std::string& name : option.names) {
    text += (text.empty() ? "" : ", ") + std::string("\\fB") + roff(name) + "\\fR";
  }
  const bool is_set = option.choices.empty() || option.value.find('|') == std::string::npos;
  if (option.takes_value()) text += " \\fI" + roff(is_set ? option.value : "SHELL") + "\\fR";
  return text;
}

std::string sentence(const std::string& text) {
  return lines_of(text + (text.empty() || text.back() == '.' ? "" : "."));
}

std::string words_of(const OptionEntry& option) {
  if (option.value.find('|') == std::string::npos) return "";
  std::string words;
  for (const std::string& word : option.choices) words += (words.empty() ? "" : ", ") + word;
  return "\n" + sentence("Takes " + words);
}

std::string item(const std::string& heading, const std::string& text) {
  return ".TP\n" + heading + "\n" + text + "\n";
}

std::string synopsis_of(const CommandEntry& command) {
  std::string text = "\\fBcupool " + roff(command.name) + "\\fR";
  if (!command.options.empty()) text += " [\\fIoptions\\fR]";
  for (const OptionEntry& operand : command.operands) {
    text += std::string(operand.required ? " " : " [") + "\\fI" + roff(operand.value) + "\\fR" +
            (operand.repeated ? "..." : "") + (operand.required ? "" : "]");
  }
  if (command.program == ProgramWords::after_options) {
    text += " [\\-\\-] \\fIprogram\\fR [\\fIarguments\\fR...]";
  } else if (command.program == ProgramWords::after_files) {
    text += " [[\\-\\-] \\fIprogram\\fR [\\fIarguments\\fR...]]";
  }
  return text;
}

bool is_setting(const OptionEntry& option) {
  return !option.variable.empty();
}

// Where a line of --help ends with a sentence, so does a line of the page.
std::string footer_of(const CommandEntry& command) {
  std::string text;
  std::string sentences;
  for (const std::string_view line : util::split(command.footer, '\n')) {
    sentences += (sentences.empty() ? "" : " ") + std::string(line);
    if (sentences.back() != '.') continue;
    text += (text.empty() ? "" : ".br\n") + lines_of(sentences) + "\n";
    sentences.clear();
  }
  return text + (sentences.empty() ? "" : lines_of(sentences) + "\n");
}

std::string command_text(const CommandEntry& command) {
  std::string text = ".SS " + argument("cupool " + command.name) + "\n" + synopsis_of(command) +
                     "\n.PP\n" + sentence(command.description) + "\n";
  if (!command.footer.empty()) text += ".PP\n" + footer_of(command);
  for (const OptionEntry& operand : command.operands) {
    text += item("\\fI" + roff(operand.value) + "\\fR", sentence(operand.description));
  }
  for (const OptionEntry& option : command.options) {
    if (is_setting(option)) continue;
    text += item(heading_of(option), sentence(option.description) + words_of(option));
  }
  if (std::any_of(command.options.begin(), command.options.end(), is_setting)) {
    text += ".PP\nIts further options are the settings below.\n";
  }
  return text;
}

// A long list is one word, which the reader breaks after commas and does not stretch.
std::string default_text(const std::string& initial) {
  if (initial.empty()) return "Not set by default.";
  if (initial.find(',') == std::string::npos) return "Default: " + roff(initial) + ".";
  std::string text = ".na\nDefault: \\c\n";
  for (const std::string_view part : util::split(initial, ',')) {
    text += roff(std::string(part)) + ",\\:\\c\n";
  }
  return text.substr(0, text.rfind(',')) + ".\n.ad";
}

// Each setting once, in the order of the first command that has it.
std::string settings_text(const CommandTable& table) {
  std::string text;
  std::string section;
  std::vector<std::string> seen;
  for (const CommandEntry& command : table.commands) {
    for (const OptionEntry& option : command.options) {
      const config::Row* const row = is_setting(option) ? find_row(option.variable) : nullptr;
      if (row == nullptr) continue;
      if (std::find(seen.begin(), seen.end(), option.variable) != seen.end()) continue;
      seen.push_back(option.variable);
      if (section != row->section) {
        section = row->section;
        text += ".SS " + argument(section) + "\n";
      }
      text += item(heading_of(option) + ", \\fB" + roff(option.variable) + "\\fR",
                   sentence(option.description) + "\n" + sentence("Takes " + row->accepted()) +
                       "\n" + default_text(row->default_text));
    }
  }
  return text;
}

constexpr const char* kEnd =
    ".SH \"EXIT STATUS\"\n"
    ".B run\nand\n.B observe\nend with the program's own exit code or signal.\n"
    "Otherwise:\n"
    ".TP\n0\nSuccess.\n"
    ".TP\n1\nThe answer is no: cupool will not serve the program, the results differ,\n"
    "calls of a replayed trace were refused, no settings were kept.\n"
    ".TP\n2\nBad arguments, or a file that cannot be used or written.\n"
    ".TP\n3\n.B compare\nis inconclusive: the results differ between runs without cupool, too,\n"
    "there was one run of each, or the program fails without cupool as well.\n"
    ".TP\n126, 127\nThe program cannot be executed, or was not found.\n"
    ".SH ENVIRONMENT\n"
    ".TP\n\\fBCUPOOL_LIBRARY\\fR\nThe library to preload, instead of the one that is installed "
    "beside the command.\n"
    ".TP\n\\fBCUPOOL_*\\fR\nThe settings above. Options of the command come first.\n"
    ".SH FILES\n"
    ".TP\n\\fI../lib/libcupool.so\\fR\nThe library, as seen from the command.\n"
    ".TP\n\\fI../share/cupool/profiles/*.env\\fR\nProfiles.\n"
    ".SH \"SEE ALSO\"\n.BR ld.so (8)\n";

}  // namespace

std::string man_page(const CommandTable& table, const std::string& date,
                     const std::string& version) {
  std::string text =
      ".\\\" Written by `cupool man`.\n.TH CUPOOL 1 \"" + date + "\" " + argument(version) + " " +
      argument("User Commands") +
      "\n.nh\n.SH NAME\ncupool \\- serve CUDA memory of unmodified programs from pools\n"
      ".SH SYNOPSIS\n\\fBcupool\\fR \\fIcommand\\fR [\\fIoptions\\fR]\n"
      ".SH DESCRIPTION\n" +
      sentence(table.description) + "\n.SH OPTIONS\n";
  for (const OptionEntry& option : table.options) {
    text += item(heading_of(option), sentence(option.description));
  }
  text += ".SH COMMANDS\n";
  for (const CommandEntry& command : table.commands) text += command_text(command);
  return text + ".SH SETTINGS\nEach is an environment variable of the program, and an\n" +
         "option of the commands that start it.\n" + settings_text(table) + kEnd;
}

}  // namespace cupool::cli
