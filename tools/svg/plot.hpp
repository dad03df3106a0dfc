#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/svg/svg.hpp"

namespace lockstep::tools {

using PlotPoints = std::vector<std::pair<double, double>>;  ///< (x, y), finite; above 0 on a logarithmic axis

/// Dots with a line. Without dots the line is thin.
struct Curve {
  std::string label;
  PlotPoints dots{};
  PlotPoints line{};            ///< empty: straight from dot to dot
  std::optional<int> colour{};  ///< by default its place in the panel
};

/// A line across the whole panel: a limit of y, or a place on x.
struct Mark {
  std::string label;
  double value = 0;
  int colour = 0;
};

struct Axis {
  /// A linear axis begins and ends at multiples of 1, 2 or 5 times a power of ten, a counted one at 0 at the latest.
  enum class Scale : unsigned char { linear, counted, log2, log10 };
  Scale scale = Scale::linear;
  std::string name{};
  std::function<std::string(double)> text = brief;  ///< a value for people
};

struct Panel {
  std::string title;
  Axis x{};
  Axis y{};
  std::vector<Curve> curves{};
  std::vector<Mark> limits{};  ///< of y, dashed, each with its label
  std::vector<Mark> marks{};   ///< on x, dotted
};

/// One panel without its title, and without labels of curves (a mouse over a curve shows its label), for a page with
/// kSvgStyle. The frame of the curves is 480 pixels wide and 220 high, from (62, 12) on.
[[nodiscard]] std::string draw(const Panel& panel);

/// Panels side by side, a label at the end of each curve, as a complete SVG file without scripts and with the reader's
/// fonts, as wide as a README.
[[nodiscard]] std::string line_plots(const std::string& title, const std::string& subtitle,
                                     const std::vector<Panel>& panels);

/// Rates between every two ranks as coloured cells, [from][to]; 0: no value. Up to 64 ranks.
struct HeatMap {
  std::string title;
  std::string subtitle;
  std::vector<int> ranks;
  std::vector<std::vector<double>> bytes_per_second;
};

[[nodiscard]] std::string heat_map(const HeatMap& map);

}  // namespace lockstep::tools
