// The bricks of the page's charts: escaping, scales with round ticks, and SVG elements that a
// keyboard and a screen reader reach. Colours are classes; the page's style sheet has them for
// light and dark.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cupool::cli {

/// `text` as HTML text or attribute value. Everything that comes from a report goes through this.
std::string escape_html(const std::string& text);

/// A coordinate, with at most two decimals, whatever the locale.
std::string coordinate(double value);

/// A figure that was computed with; beyond 64 bits it is the highest that has room.
std::uint64_t whole_number(double value);

struct Tick {
  double place = 0;
  std::string label;
};

/// Maps [0, highest] to [from, to] in a straight line.
struct LinearScale {
  double highest = 1;
  double from = 0;
  double to = 1;
  double operator()(double value) const { return from + (to - from) * value / highest; }
};

/// Maps [lowest, highest] to [from, to] by powers; both are above 0, what is below goes to `from`.
struct LogScale {
  double lowest = 1;
  double highest = 10;
  double from = 0;
  double to = 1;
  double operator()(double value) const;
};

/// Round byte counts from 0 to `highest` (1, 2, 4, ... of a binary unit), at most about `wanted`.
std::vector<Tick> byte_ticks(double highest, int wanted);
/// Round durations from 0 to `highest` nanoseconds.
std::vector<Tick> duration_ticks(double highest, int wanted);
/// Powers of ten nanoseconds from `lowest` to `highest`.
std::vector<Tick> log_duration_ticks(double lowest, double highest);
/// Powers of ten from 1 to `highest`.
std::vector<Tick> log_count_ticks(double highest);

/// One SVG picture under construction; sizes in its own units, the page scales it.
class Svg {
 public:
  /// `id` is unique in the page; `title` and `description` are read out and name the picture.
  Svg(std::string id, std::string title, std::string description, double width, double height);

  void rect(double x, double y, double width, double height, const std::string& css_class);
  void line(double x1, double y1, double x2, double y2, const std::string& css_class);
  void circle(double x, double y, double radius, const std::string& css_class);
  void path(const std::string& commands, const std::string& css_class);
  /// `anchor`: start, middle or end.
  void text(double x, double y, const std::string& text, const std::string& anchor,
            const std::string& css_class = "");
  /// A place that shows `lines` when it is pointed at or has the focus. Drawn above all else.
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
