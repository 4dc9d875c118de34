// SPDX-License-Identifier: Apache-2.0
// Building blocks of the page's charts: escaping, scales with round ticks, and SVG elements that
// work with keyboard and screen reader. Colours are classes of the page's style sheet, which has a
// light and a dark scheme.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cupool::cli {

/// Escapes `text` for HTML text and attributes. Every text of a report goes through this.
std::string escape_html(const std::string& text);

/// escape_html for sentences: a figure and its unit ("16.0 GiB") stay on one line.
std::string prose_html(const std::string& text);

/// A coordinate with at most two decimals, in the C locale's notation.
std::string coordinate(double value);

/// The approximate width of a text in the charts' font, rounded up.
double text_width(const std::string& text);

/// Converts a computed figure to an integer, clamped to 64 bits.
std::uint64_t whole_number(double value);

struct Tick {
  double place = 0;
  std::string label;
};

/// Maps [0, highest] to [from, to] linearly.
struct LinearScale {
  double highest = 1;
  double from = 0;
  double to = 1;
  double operator()(double value) const { return from + (to - from) * value / highest; }
};

/// Maps [lowest, highest] to [from, to] logarithmically. Both bounds are above 0; values below
/// `lowest` map to `from`.
struct LogScale {
  double lowest = 1;
  double highest = 10;
  double from = 0;
  double to = 1;
  double operator()(double value) const;
};

/// About `wanted` round byte counts (1, 2, 4, ... of a binary unit) from 0 to `highest`.
std::vector<Tick> byte_ticks(double highest, int wanted);
/// Round durations from 0 to `highest` nanoseconds.
std::vector<Tick> duration_ticks(double highest, int wanted);
/// Powers of ten nanoseconds from `lowest` to `highest`.
std::vector<Tick> log_duration_ticks(double lowest, double highest);
/// Powers of ten from 1 to `highest`.
std::vector<Tick> log_count_ticks(double highest);

/// Builds one SVG picture. Sizes are in its own units; the page scales it.
class Svg {
 public:
  /// `id` is unique in the page; screen readers read `title` and `description`.
  Svg(std::string id, std::string title, std::string description, double width, double height);

  void rect(double x, double y, double width, double height, const std::string& css_class);
  void line(double x1, double y1, double x2, double y2, const std::string& css_class);
  void circle(double x, double y, double radius, const std::string& css_class);
  void path(const std::string& commands, const std::string& css_class);
  /// `anchor`: start, middle or end.
  void text(double x, double y, const std::string& text, const std::string& anchor,
            const std::string& css_class = "");
  /// An area that shows `lines` on hover and focus. Drawn on top.
  void hit(double x, double y, double width, double height, const std::vector<std::string>& lines);

  std::string finish() const;

 private:
  std::string id_;
  std::string title_;
  std::string description_;
  double width_;
  double height_;
  std::string shapes_;
  std::string hits_;
};

}  // namespace cupool::cli
