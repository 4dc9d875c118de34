// SPDX-License-Identifier: Apache-2.0
// A part that differs counts against cupool only if runs without it agree among themselves.
#include "cli/trial/comparison.h"

#include <algorithm>
#include <cstdio>

#include "cli/page/text.h"
#include "util/text.h"

namespace cupool::cli {

namespace {

constexpr const char* kAsFast = "as fast";

using PartOf = Text (*)(const Outcome&, std::size_t);  // null: there is none
using TextOf = std::string (*)(const Outcome&, std::size_t);

ComparedPart compare_part(const std::string& name, const std::vector<Outcome>& without,
                          const std::vector<Outcome>& with, PartOf part, TextOf shown,
                          std::size_t index) {
  const Text expected = part(without.front(), index);
  const auto differs = [&](const Outcome& outcome) {
    const Text text = part(outcome, index);
    if (text == nullptr || expected == nullptr) return text != expected;
    return text != expected && *text != *expected;
  };
  const auto other = std::find_if(with.begin(), with.end(), differs);
  ComparedPart compared{name, shown(without.front(), index),
                        shown(other == with.end() ? with.front() : *other, index), Likeness::same};
  if (std::any_of(without.begin(), without.end(), differs)) {
    compared.without = "differs from run to run";
    compared.likeness = Likeness::unsteady;
  } else if (other != with.end()) {
    compared.likeness = without.size() == 1 ? Likeness::unjudged : Likeness::different;
  } else if (expected == nullptr) {
    compared.likeness = Likeness::unwritten;
  }
  return compared;
}

std::string size_text(const std::string& content) {
  return util::format_count(content.size()) + (content.size() == 1 ? " byte" : " bytes");
}

}  // namespace

std::vector<ComparedPart> compare_outcomes(const std::vector<Outcome>& without,
                                           const std::vector<Outcome>& with,
                                           const std::vector<std::string>& files) {
  const auto ending = [](const Outcome& outcome, std::size_t) -> Text {
    return std::make_shared<const std::string>(outcome.ending);
  };
  const auto ending_text = [](const Outcome& outcome, std::size_t) { return outcome.ending; };
  const auto output = [](const Outcome& outcome, std::size_t) { return outcome.output; };
  const auto output_size = [](const Outcome& outcome, std::size_t) {
    return size_text(*outcome.output);
  };
  const auto file = [](const Outcome& outcome, std::size_t index) {
    return outcome.files[index].content;
  };
  const auto file_size = [](const Outcome& outcome, std::size_t index) {
    const FileState& state = outcome.files[index];
    if (state.content != nullptr) return size_text(*state.content);
    return std::string(state.exists ? "not written" : "not there");
  };
  std::vector<ComparedPart> parts;
  parts.push_back(compare_part("exit code", without, with, ending, ending_text, 0));
  parts.push_back(compare_part("standard output", without, with, output, output_size, 0));
  for (std::size_t i = 0; i < files.size(); ++i) {
    parts.push_back(compare_part(files[i], without, with, file, file_size, i));
  }
  return parts;
}

std::string names_of(const std::vector<ComparedPart>& parts, Likeness likeness) {
  std::vector<std::string> names;
  for (const ComparedPart& part : parts) {
    if (part.likeness == likeness) names.push_back(printable_text(part.name));
  }
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == names.size() ? " and " : ", ") + names[i];
  }
  return text;
}

std::string first_difference(const std::string& a, const std::string& b, const std::string& name_a,
                             const std::string& name_b) {
  const auto at = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first;
  const auto place = static_cast<std::size_t>(at - a.begin());
  const auto line = 1 + static_cast<std::size_t>(std::count(a.begin(), at, '\n'));
  const std::size_t begin = place == 0 ? 0 : a.rfind('\n', place - 1) + 1;
  const auto line_at = [begin](const std::string& text) {
    const std::string whole = text.substr(std::min(begin, text.size()));
    return printable_text(whole.substr(0, std::min<std::size_t>(whole.find('\n'), 100)));
  };
  const std::size_t width = std::max(name_a.size(), name_b.size()) + 2;
  const auto row = [&](const std::string& name, const std::string& text) {
    std::string padded = "    " + name + ":";
    padded.resize(4 + width, ' ');
    return padded + line_at(text) + "\n";
  };
  return "  line " + std::to_string(line) + "\n" + row(name_a, a) + row(name_b, b);
}

std::string speed_words(const Spread& without, const Spread& with) {
  if (without.median <= 0 || with.median <= 0) return kAsFast;
  const bool slower = with.median > without.median;
  const double ratio = slower ? with.median / without.median : without.median / with.median;
  char text[64];
  std::snprintf(text, sizeof text, "%.2f", ratio);
  if (std::string(text) == "1.00") return kAsFast;
  return text + std::string(slower ? " times slower" : " times as fast");
}

std::string speed_sentence(const Spread& without, const Spread& with, std::size_t runs) {
  const std::string speed = speed_words(without, with);
  if (runs < kFewRuns) return speed + ", but fewer than three runs prove little";
  if (speed == kAsFast) return "no time difference";
  if (with.highest < without.lowest) return "faster in every run: " + speed;
  if (without.highest < with.lowest) return "slower in every run: " + speed;
  return "no time difference beyond the spread (medians: " + speed + ")";
}

}  // namespace cupool::cli
