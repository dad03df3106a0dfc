#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/lockstep_report/run_log.hpp"

namespace lockstep::tools {

struct Series {
  std::string label;
  Points points;
  int colour = 0;           ///< of the run; series of one run share it
  bool evaluation = false;  ///< drawn thick and with a mark at each point
};

/// A dotted vertical line: a run was resumed after this step.
struct Resumed {
  std::string label;  ///< the run
  std::int64_t step = 0;
  int colour = 0;
};

struct Chart {
  std::string title;  ///< with the unit: "accuracy, %"
  std::vector<Series> series;
  std::vector<Resumed> resumed;
};

/// Where a chart's values lie in its picture: (step, value) to pixels from the upper left corner.
struct ChartScale {
  static constexpr double kLeft = 62, kTop = 12, kWidth = 480, kHeight = 220;  ///< of the frame, in pixels
  double first_step = 0, last_step = 1;
  double least = 0, most = 1;
  double value_step = 1;  ///< between two ticks; least and most are multiples of it
  [[nodiscard]] double x(double step) const { return kLeft + kWidth * (step - first_step) / (last_step - first_step); }
  [[nodiscard]] double y(double value) const { return kTop + kHeight * (most - value) / (most - least); }
};

/// The scale that shows all points, with ticks at multiples of 1, 2 or 5 times a power of ten.
[[nodiscard]] ChartScale scale_of(const Chart& chart);

/// At most `most` points that look the same: of equally wide ranges of steps the least and the greatest value.
[[nodiscard]] Points thinned(const Points& points, std::size_t most);

/// An <svg> element. A chart without a point says so.
[[nodiscard]] std::string draw(const Chart& chart);

/// Text for HTML: <, >, &, and quotes mean nothing; control characters and what is not UTF-8 as \xNN.
[[nodiscard]] std::string escaped(const std::string& text);
/// A number for people: 4 significant digits; "1.234M" from 1e4 on, "1e12" from there on and below 1e-3.
[[nodiscard]] std::string brief(double value);

}  // namespace lockstep::tools
