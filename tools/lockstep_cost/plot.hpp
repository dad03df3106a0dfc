#pragma once

#include <string>
#include <utility>
#include <vector>

namespace lockstep::tools {

/// A curve: measurements as dots, and the model as a line.
struct Curve {
  std::string label;                              ///< written beside its end
  std::vector<std::pair<double, double>> dots{};  ///< (bytes or ranks, value), values above 0
  std::vector<std::pair<double, double>> line{};  ///< likewise; empty: straight from dot to dot
};

/// A physical limit, drawn across the panel.
struct Limit {
  std::string label;
  double value = 0;
};

enum class Scale : unsigned char { seconds, bytes_per_second, percent };

/// What values are over.
enum class Axis : unsigned char { bytes, ranks };

/// Values over bytes or ranks, both on logarithmic axes, but per cents on a linear one.
struct Panel {
  std::string title;
  Scale scale = Scale::seconds;
  Axis over = Axis::bytes;
  std::vector<Curve> curves{};  ///< at most 6 are told apart by colour
  std::vector<Limit> limits{};
};

/// One panel, or several side by side, as a complete SVG file without scripts and with the reader's fonts, readable on
/// light and dark pages, as wide as a README. Texts may hold any characters. Curves without dots are left out; a panel
/// without any curve says so.
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
