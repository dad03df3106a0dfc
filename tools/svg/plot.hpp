#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/svg/svg.hpp"

namespace lockstep::tools {

using PlotPoints = std::vector<std::pair<double, double>>;  ///< (x, y), finite; above 0 on a logarithmic axis

/// A curve of dots and a line. Without dots the line is thin.
struct Curve {
  std::string label;
  PlotPoints dots{};
  PlotPoints line{};            ///< points of the line; if empty, straight lines connect the dots
  std::optional<int> colour{};  ///< index of the colour; if empty, the curve's index in the panel
};

/// A straight line across the whole panel: horizontal at a limit (Panel::limits), or vertical (Panel::marks).
struct Mark {
  std::string label;
  double value = 0;
  int colour = 0;
};

struct Axis {
  /// A linear axis begins and ends at multiples of 1, 2 or 5 times a power of ten; a counted axis also includes 0.
  enum class Scale : unsigned char { linear, counted, log2, log10 };
  Scale scale = Scale::linear;
  std::string name{};
  std::function<std::string(double)> text = brief;  ///< returns the text of a value
};

struct Panel {
  std::string title;
  Axis x{};
  Axis y{};
  std::vector<Curve> curves{};
  std::vector<Mark> limits{};  ///< horizontal dashed lines at values of the y axis, with labels
  std::vector<Mark> marks{};   ///< vertical dotted lines at values of the x axis
};

/// Returns one panel for a page with kSvgStyle, without its title and without labels of curves (a mouse over a curve
/// shows its label). The frame of the curves is 480 pixels wide and 220 high, from (62, 12) on.
[[nodiscard]] std::string draw(const Panel& panel);

/// Returns a complete SVG file with panels side by side and a label at the end of each curve. The file has no scripts,
/// uses the reader's fonts, and is as wide as a README.
[[nodiscard]] std::string line_plots(const std::string& title, const std::string& subtitle,
                                     const std::vector<Panel>& panels);

/// Rates between every two ranks, to be drawn as coloured cells. bytes_per_second[from][to] is 0 if there is no value.
/// Up to 64 ranks.
struct HeatMap {
  std::string title;
  std::string subtitle;
  std::vector<int> ranks;
  std::vector<std::vector<double>> bytes_per_second;
};

[[nodiscard]] std::string heat_map(const HeatMap& map);

}  // namespace lockstep::tools
