// SPDX-License-Identifier: Apache-2.0
// Lines at the same place are cut into texts and numbers. Where the texts agree, the numbers that
// vary become classes of characters; a proposal counts only after it was tried on the lines.
#include "cli/trial/ignored.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <set>

#include "cli/shell/exit_code.h"
#include "cli/shell/shell_words.h"

namespace cupool::cli {

namespace {

// More expressions than this are no help to anybody.
constexpr std::size_t kMostProposed = 8;
// Matching takes about a microsecond a line: larger outputs, of all runs together, get no proposal.
// The text before a number that an expression repeats.
constexpr std::size_t kLongestContext = 40;

bool is_digit(char c) {
  return std::isdigit(static_cast<unsigned char>(c)) != 0;
}

bool is_letter(char c) {
  return std::isalpha(static_cast<unsigned char>(c)) != 0;
}

// A number with the blanks around it, whose width varies with its own, and the text behind it.
struct Number {
  std::string before;  // blanks
  std::string digits;
  std::string after;  // blanks
  std::string text;   // up to the next number
};

struct Line {
  std::string text;  // up to the first number
  std::vector<Number> numbers;
};

std::size_t skip_digits(const std::string& line, std::size_t at) {
  while (at < line.size() && is_digit(line[at])) ++at;
  return at;
}

// The end of the number that begins at `at`: 12, 1.5e-3, 12:30:05, 2026-01-31, 0x7f00.
std::size_t number_end(const std::string& line, std::size_t at) {
  const auto is_at = [&line](std::size_t place, const char* any) {
    return place < line.size() && std::string(any).find(line[place]) != std::string::npos;
  };
  if (line[at] == '0' && is_at(at + 1, "x")) {
    std::size_t end = at + 2;
    while (end < line.size() && std::isxdigit(static_cast<unsigned char>(line[end])) != 0) ++end;
    return end;
  }
  std::size_t end = skip_digits(line, at + (is_digit(line[at]) ? 0 : 1));
  while (is_at(end, ".:/-") && is_at(end + 1, "0123456789")) end = skip_digits(line, end + 1);
  if (!is_at(end, "eE")) return end;
  const std::size_t exponent = end + (is_at(end + 1, "+-") ? 2 : 1);
  return is_at(exponent, "0123456789") ? skip_digits(line, exponent) : end;
}

bool begins_number(const std::string& line, std::size_t at) {
  if (is_digit(line[at])) return true;
  const bool sign = line[at] == '-' || line[at] == '+';
  const bool free = at == 0 || (!is_letter(line[at - 1]) && !is_digit(line[at - 1]));
  return sign && free && at + 1 < line.size() && is_digit(line[at + 1]);
}

Line parse_line(const std::string& line) {
  Line parsed;
  std::string* text = &parsed.text;
  for (std::size_t at = 0; at < line.size();) {
    if (!begins_number(line, at)) {
      *text += line[at++];
      continue;
    }
    Number number;
    const std::size_t kept = text->find_last_not_of(' ') + 1;  // npos + 1 is 0
    number.before = text->substr(kept);
    text->erase(kept);
    const std::size_t end = number_end(line, at);
    number.digits = line.substr(at, end - at);
    at = std::min(line.find_first_not_of(' ', end), line.size());
    number.after = line.substr(end, at - end);
    parsed.numbers.push_back(number);
    text = &parsed.numbers.back().text;
  }
  return parsed;
}

bool is_hexadecimal(const Number& number) {
  return number.digits.compare(0, 2, "0x") == 0;
}

// Whether the lines differ in their numbers only.
bool is_alike(const Line& a, const Line& b) {
  if (a.text != b.text || a.numbers.size() != b.numbers.size()) return false;
  for (std::size_t i = 0; i < a.numbers.size(); ++i) {
    if (a.numbers[i].text != b.numbers[i].text) return false;
    if (is_hexadecimal(a.numbers[i]) != is_hexadecimal(b.numbers[i])) return false;
  }
  return true;
}

std::string pattern_of(const std::string& text) {
  return escaped(text, "^$\\.*+?()[]{}|", "\\");
}

using Part = std::string Number::*;

bool varies(const std::vector<Line>& runs, std::size_t index, Part part) {
  return std::any_of(runs.begin(), runs.end(), [&](const Line& line) {
    return line.numbers[index].*part != runs.front().numbers[index].*part;
  });
}

std::string blanks_pattern(const std::vector<Line>& seen, std::size_t index, Part blanks) {
  return varies(seen, index, blanks) ? " *" : seen.front().numbers[index].*blanks;
}

// A class of the characters that the number had.
std::string digits_pattern(const std::vector<Line>& seen, std::size_t index) {
  if (is_hexadecimal(seen.front().numbers[index])) return "0x[0-9a-fA-F]+";
  std::set<char> others;
  for (const Line& line : seen) {
    for (const char c : line.numbers[index].digits) {
      if (!is_digit(c)) others.insert(c);
    }
  }
  std::string letters;
  for (const char c : others) {
    if (c != '-') letters += c;
  }
  return "[0-9" + letters + (others.count('-') != 0 ? "-" : "") + "]+";
}

std::string number_pattern(const std::vector<Line>& seen, std::size_t index, bool after) {
  return blanks_pattern(seen, index, &Number::before) + digits_pattern(seen, index) +
         (after ? blanks_pattern(seen, index, &Number::after) : "");
}

// A line that is not equal in all runs.
struct Varying {
  std::vector<Line> runs;  // without cupool
  std::vector<Line> seen;  // and those with cupool that are alike
  std::vector<std::string> texts;

  bool number_varies(std::size_t index) const {
    return varies(runs, index, &Number::digits) || varies(runs, index, &Number::before) ||
           varies(runs, index, &Number::after);
  }
};

std::string text_before(const Line& line, std::size_t index) {
  const std::string& all = index == 0 ? line.text : line.numbers[index - 1].text;
  if (all.size() <= kLongestContext) return all;
  const std::size_t blank = all.find(' ', all.size() - kLongestContext);
  return blank == std::string::npos ? all : all.substr(blank + 1);
}

// The whole line, in which only what varies is open.
std::string line_pattern(const Varying& line) {
  const Line& first = line.runs.front();
  std::string pattern = "^" + pattern_of(first.text);
  for (std::size_t i = 0; i < first.numbers.size(); ++i) {
    const Number& number = first.numbers[i];
    pattern += line.number_varies(i) ? number_pattern(line.seen, i, true)
                                     : number.before + pattern_of(number.digits) + number.after;
    pattern += pattern_of(number.text);
  }
  return pattern + "$";
}

// The text before a number, with the digits of a name that they are part of: "p99_us=".
std::string named_before(const Varying& line, std::size_t index) {
  const Line& first = line.runs.front();
  std::string before = text_before(first, index);
  if (index == 0 || line.number_varies(index - 1)) return before;
  const Number& digits = first.numbers[index - 1];
  const std::string name = text_before(first, index - 1);
  const bool joined = digits.before.empty() && digits.after.empty() &&
                      before.find(' ') == std::string::npos && !before.empty();
  if (!joined || name.empty() || !is_letter(name.back())) return before;
  return name.substr(name.rfind(' ') + 1) + digits.digits + before;  // npos + 1 is 0
}

// A number with the words beside it: "took [0-9.]+ ms". The whole line if there are none.
std::string short_pattern(const Varying& line, std::size_t index) {
  const Line& first = line.runs.front();
  const auto has_letter = [](const std::string& text) {
    return std::any_of(text.begin(), text.end(), is_letter);
  };
  const std::string before = named_before(line, index);
  const std::string& all = first.numbers[index].text;
  std::string after = all.substr(0, all.find(' '));
  // Words that the next number's expression begins with are left to it.
  if (has_letter(before) && after == all && index + 1 < first.numbers.size()) after.clear();
  if (!has_letter(before) && !has_letter(after)) return line_pattern(line);
  return pattern_of(before) + number_pattern(line.seen, index, !after.empty()) + pattern_of(after);
}

struct Outputs {
  std::vector<Varying> varying;
  std::vector<std::string> steady;
};

bool ends_its_last_line(const std::string& output) {
  return output.empty() || output.back() == '\n';
}

std::vector<std::string> lines_of(const std::string& output) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < output.size();) {
    const std::size_t end = std::min(output.find('\n', at), output.size());
    lines.push_back(output.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

bool is_printable(const std::string& line) {
  return line.size() <= kLongestMatchedLine && std::none_of(line.begin(), line.end(), [](char c) {
           return static_cast<unsigned char>(c) < ' ' && c != '\t';
         });
}

// The line at `place` of each run; nothing if other things than numbers vary.
std::optional<Varying> varying_line(const std::vector<std::vector<std::string>>& without,
                                    const std::vector<std::vector<std::string>>& with,
                                    std::size_t place) {
  Varying line;
  for (const std::vector<std::string>& run : without) {
    if (!is_printable(run[place])) return std::nullopt;
    line.texts.push_back(run[place]);
    line.runs.push_back(parse_line(run[place]));
    if (!is_alike(line.runs.front(), line.runs.back())) return std::nullopt;
  }
  line.seen = line.runs;
  for (const std::vector<std::string>& run : with) {
    if (place >= run.size() || !is_printable(run[place])) continue;
    Line parsed = parse_line(run[place]);
    if (is_alike(line.runs.front(), parsed)) line.seen.push_back(std::move(parsed));
  }
  return line;
}

std::optional<Outputs> align(const std::vector<std::string>& without,
                             const std::vector<std::string>& with) {
  std::vector<std::vector<std::string>> runs;
  std::vector<std::vector<std::string>> others;
  for (const std::string& output : without) runs.push_back(lines_of(output));
  for (const std::string& output : with) others.push_back(lines_of(output));
  Outputs outputs;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].size() != runs[0].size() ||
        ends_its_last_line(without[i]) != ends_its_last_line(without[0])) {
      return std::nullopt;
    }
  }
  for (std::size_t place = 0; place < runs.front().size(); ++place) {
    const bool equal = std::all_of(runs.begin(), runs.end(), [&](const auto& run) {
      return run[place] == runs.front()[place];
    });
    if (equal) {
      outputs.steady.push_back(runs.front()[place]);
      continue;
    }
    std::optional<Varying> line = varying_line(runs, others, place);
    if (!line) return std::nullopt;
    outputs.varying.push_back(std::move(*line));
  }
  return outputs;
}

// How many pieces of a line an expression removes.
std::size_t matches_in(const std::string& line, const std::regex& pattern) {
  if (line.size() > kLongestMatchedLine) return 0;
  return static_cast<std::size_t>(
      std::distance(std::sregex_iterator(line.begin(), line.end(), pattern), {}));
}

// Whether the expressions make the runs equal, and hide less that is steady than what varies: a
// time may be equal in all runs by chance, a result may not vanish.
bool is_proper(const std::vector<std::string>& texts, const Outputs& outputs) {
  if (texts.size() > kMostProposed) return false;
  const std::vector<std::regex> patterns = patterns_of(texts);
  for (const Varying& line : outputs.varying) {
    const std::string expected = comparable(line.texts.front(), patterns);
    for (const std::string& text : line.texts) {
      if (comparable(text, patterns) != expected) return false;
    }
  }
  for (const std::regex& pattern : patterns) {
    std::size_t hidden = 0;
    std::size_t wanted = 0;
    for (const std::string& line : outputs.steady) hidden += matches_in(line, pattern);
    for (const Varying& line : outputs.varying) {
      const std::size_t found = matches_in(line.texts.front(), pattern);
      std::size_t numbers = 0;
      for (std::size_t i = 0; i < line.runs.front().numbers.size(); ++i) {
        numbers += line.number_varies(i) ? 1 : 0;
      }
      wanted += std::min(found, numbers);
      hidden += found - std::min(found, numbers);
    }
    if (hidden > wanted) return false;
  }
  return true;
}

void add_new(const std::string& text, std::vector<std::string>* texts) {
  if (std::find(texts->begin(), texts->end(), text) == texts->end()) texts->push_back(text);
}

}  // namespace

std::vector<std::regex> patterns_of(const std::vector<std::string>& texts) {
  std::vector<std::regex> patterns;
  for (const std::string& text : texts) {
    try {
      patterns.emplace_back(text);
    } catch (const std::regex_error&) {
      throw UsageError("--ignore: not a regular expression (ECMAScript): " + text +
                       "\nA backslash before ( ) [ ] { } . * + ? ^ $ | makes it an ordinary "
                       "character: --ignore 'took \\(.*\\)'");
    }
  }
  return patterns;
}

std::string comparable(const std::string& output, const std::vector<std::regex>& ignored) {
  if (ignored.empty()) return output;
  std::string kept;
  std::size_t at = 0;
  while (at < output.size()) {
    const std::size_t end = std::min(output.find('\n', at), output.size());
    std::string line = output.substr(at, end - at);
    for (const std::regex& pattern : ignored) {
      if (line.size() <= kLongestMatchedLine) line = std::regex_replace(line, pattern, "");
    }
    kept += line;
    if (end < output.size()) kept += '\n';
    at = end + 1;
  }
  return kept;
}

std::vector<std::string> proposed_ignores(const std::vector<std::string>& without,
                                          const std::vector<std::string>& with) {
  std::size_t bytes = 0;
  for (const std::string& output : without) bytes += output.size();
  if (without.empty() || bytes > kLargestOutputs) return {};
  const std::optional<Outputs> outputs = align(without, with);
  if (!outputs || outputs->varying.empty()) return {};
  std::vector<std::string> by_number;
  std::vector<std::string> by_line;
  for (const Varying& line : outputs->varying) {
    if (by_number.size() > kMostProposed) break;
    for (std::size_t i = 0; i < line.runs.front().numbers.size(); ++i) {
      if (line.number_varies(i)) add_new(short_pattern(line, i), &by_number);
    }
    if (by_line.size() <= kMostProposed) add_new(line_pattern(line), &by_line);
  }
  if (is_proper(by_number, *outputs)) return by_number;
  return is_proper(by_line, *outputs) ? by_line : std::vector<std::string>();
}

}  // namespace cupool::cli
