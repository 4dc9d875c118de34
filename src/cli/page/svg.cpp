// SPDX-License-Identifier: Apache-2.0
// Writes SVG as text. The style sheet shows tips on hover and focus, without a script.
#include "cli/page/svg.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <iterator>
#include <string_view>
#include <utility>

#include "util/text.h"

namespace cupool::cli {

std::string escape_html(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default:
        // HTML allows no control characters.
        escaped += static_cast<unsigned char>(c) < ' ' || c == 0x7f ? '?' : c;
    }
  }
  return escaped;
}

std::string prose_html(const std::string& text) {
  static constexpr std::string_view kUnits[] = {"B",   "KiB", "MiB", "GiB", "TiB", "PiB",
                                                "EiB", "ns",  "us",  "ms",  "s",   "%"};
  std::string kept;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool after_digit = i > 0 && std::isdigit(static_cast<unsigned char>(text[i - 1])) != 0;
    if (text[i] == ' ' && after_digit) {
      const std::size_t end = std::min(text.find_first_of(" ,.;:)", i + 1), text.size());
      const std::string_view word = std::string_view(text).substr(i + 1, end - i - 1);
      const bool unit = std::find(std::begin(kUnits), std::end(kUnits), word) != std::end(kUnits);
      kept += unit ? "\xc2\xa0" : " ";
    } else {
      kept += text[i];
    }
  }
  return escape_html(kept);
}

std::string coordinate(double value) {
  if (!std::isfinite(value)) return "0";
  const long long hundredths = std::llround(value * 100);
  std::string text = hundredths < 0 ? "-" : "";
  const auto magnitude = static_cast<unsigned long long>(std::llabs(hundredths));
  text += std::to_string(magnitude / 100);
  const unsigned long long rest = magnitude % 100;
  if (rest != 0) {
    text += '.';
    text += static_cast<char>('0' + rest / 10);
    if (rest % 10 != 0) text += static_cast<char>('0' + rest % 10);
  }
  return text;
}

double text_width(const std::string& text) {
  const auto letters = std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;  // not inside a UTF-8 character
  });
  return static_cast<double>(letters) * 6.8;
}

std::uint64_t whole_number(double value) {
  constexpr double kHighest = 18446744073709549568.0;  // the last double below 2^64
  return static_cast<std::uint64_t>(std::clamp(value, 0.0, kHighest));
}

double LogScale::operator()(double value) const {
  const double above = std::log(std::max(value, lowest) / lowest);
  return from + (to - from) * above / std::log(highest / lowest);
}

namespace {

std::vector<Tick> even_ticks(double highest, double step, std::string (*format)(std::uint64_t)) {
  std::vector<Tick> ticks;
  double value = 0;
  while (value <= highest * 1.0001) {
    ticks.push_back({value, format(whole_number(value))});
    value += step;
  }
  return ticks;
}

}  // namespace

std::vector<Tick> byte_ticks(double highest, int wanted) {
  double step = 1;
  while (highest / step > wanted) step *= 2;
  return even_ticks(highest, step, util::format_bytes);
}

std::vector<Tick> duration_ticks(double highest, int wanted) {
  double step = 1;
  const double factors[] = {2, 2.5, 2};
  for (int i = 0; highest / step > wanted; ++i) step *= factors[i % 3];
  return even_ticks(highest, step, util::format_duration_ns);
}

std::vector<Tick> log_duration_ticks(double lowest, double highest) {
  const char* const units[] = {"ns", "us", "ms", "s"};
  std::vector<Tick> ticks;
  double value = 1;
  for (int power = 0; value <= highest * 1.0001 && power < 12; ++power, value *= 10) {
    const char* const steps[] = {"1 ", "10 ", "100 "};
    if (value >= lowest * 0.9999) {
      ticks.push_back({value, std::string(steps[power % 3]) + units[power / 3]});
    }
  }
  return ticks;
}

std::vector<Tick> log_count_ticks(double highest) {
  std::vector<Tick> ticks;
  double value = 1;
  while (value <= highest * 1.0001) {
    ticks.push_back({value, util::format_count(whole_number(value))});
    value *= 10;
  }
  return ticks;
}

Svg::Svg(std::string id, std::string title, std::string description, double width, double height)
    : id_(std::move(id)),
      title_(std::move(title)),
      description_(std::move(description)),
      width_(width),
      height_(height) {}

void Svg::rect(double x, double y, double width, double height, const std::string& css_class) {
  shapes_ += "<rect x=\"" + coordinate(x) + "\" y=\"" + coordinate(y) + "\" width=\"" +
             coordinate(std::max(width, 0.0)) + "\" height=\"" + coordinate(std::max(height, 0.0)) +
             "\" class=\"" + css_class + "\"/>\n";
}

void Svg::line(double x1, double y1, double x2, double y2, const std::string& css_class) {
  shapes_ += "<line x1=\"" + coordinate(x1) + "\" y1=\"" + coordinate(y1) + "\" x2=\"" +
             coordinate(x2) + "\" y2=\"" + coordinate(y2) + "\" class=\"" + css_class + "\"/>\n";
}

void Svg::circle(double x, double y, double radius, const std::string& css_class) {
  shapes_ += "<circle cx=\"" + coordinate(x) + "\" cy=\"" + coordinate(y) + "\" r=\"" +
             coordinate(radius) + "\" class=\"" + css_class + "\"/>\n";
}

void Svg::path(const std::string& commands, const std::string& css_class) {
  shapes_ += "<path d=\"" + commands + "\" class=\"" + css_class + "\"/>\n";
}

void Svg::text(double x, double y, const std::string& text, const std::string& anchor,
               const std::string& css_class) {
  shapes_ += "<text x=\"" + coordinate(x) + "\" y=\"" + coordinate(y) + "\" text-anchor=\"" +
             anchor + "\"" + (css_class.empty() ? "" : " class=\"" + css_class + "\"") + ">" +
             escape_html(text) + "</text>\n";
}

void Svg::hit(double x, double y, double width, double height,
              const std::vector<std::string>& lines) {
  constexpr double kLetter = 6.6;
  constexpr double kLine = 16;
  constexpr double kPadding = 8;
  std::size_t longest = 0;
  std::string label;
  for (const std::string& line : lines) {
    longest = std::max(longest, line.size());
    label += (label.empty() ? "" : "; ") + line;
  }
  const double tip_width = std::min(width_, static_cast<double>(longest) * kLetter + 2 * kPadding);
  const double tip_height = static_cast<double>(lines.size()) * kLine + kPadding;
  const double left = std::clamp(x + width / 2 - tip_width / 2, 0.0, width_ - tip_width);
  const bool above = y >= tip_height + 6;
  const double top =
      above ? y - tip_height - 6 : std::max(0.0, std::min(y + height + 6, height_ - tip_height));
  hits_ += "<g class=\"hit\" tabindex=\"0\" role=\"img\" aria-label=\"" + escape_html(label) +
           "\"><rect class=\"area\" x=\"" + coordinate(x) + "\" y=\"" + coordinate(y) +
           "\" width=\"" + coordinate(std::max(width, 0.0)) + "\" height=\"" +
           coordinate(std::max(height, 0.0)) +
           "\"/><g class=\"tip\" aria-hidden=\"true\"><rect x=\"" + coordinate(left) + "\" y=\"" +
           coordinate(top) + "\" width=\"" + coordinate(tip_width) + "\" height=\"" +
           coordinate(tip_height) + "\" rx=\"4\"/>";
  double baseline = top + kLine - 2;
  for (const std::string& line : lines) {
    hits_ += "<text x=\"" + coordinate(left + kPadding) + "\" y=\"" + coordinate(baseline) + "\">" +
             escape_html(line) + "</text>";
    baseline += kLine;
  }
  hits_ += "</g></g>\n";
}

std::string Svg::finish() const {
  // Below, the letters are too small to read: the chart scrolls instead.
  constexpr double kLeastScale = 0.85;
  // Above, a narrow chart by itself would have letters like a headline's.
  constexpr double kMostScale = 1.15;
  return "<div class=\"chart\"><svg style=\"min-width:" +
         coordinate(std::round(width_ * kLeastScale)) +
         "px;max-width:" + coordinate(std::round(width_ * kMostScale)) + "px\" viewBox=\"0 0 " +
         coordinate(width_) + " " + coordinate(height_) + "\" role=\"group\" aria-labelledby=\"" +
         id_ + "-title " + id_ + "-description\">\n<title id=\"" + id_ + "-title\">" +
         escape_html(title_) + "</title>\n<desc id=\"" + id_ + "-description\">" +
         escape_html(description_) + "</desc>\n" + shapes_ + hits_ + "</svg></div>\n";
}

}  // namespace cupool::cli
