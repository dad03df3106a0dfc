#include "tools/svg/plot.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/units.hpp>

namespace lockstep::tools {

namespace {

constexpr double kPlotWidth = 880;
constexpr double kAxisRoom = 58;  // pixels for the texts of a y axis
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Range {
  double least = kInfinity;
  double most = -kInfinity;
  void add(double value) {
    least = std::min(least, value);
    most = std::max(most, value);
  }
};

/// Returns the smallest number of the form 1, 2 or 5 times a power of ten that divides `range` into at most `most`
/// steps.
double nice_step(double range, int most) {
  const double least = range / most;
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= least * (1 - 1e-12)) {
      return factor * power;
    }
  }
  return 10 * power;
}

/// An axis from pixel `from` to pixel `to`, with the values of its grid lines.
class PlacedAxis {
 public:
  PlacedAxis(const Axis& axis, Range values, double from, double to, int lines)
      : scale_(axis.scale), from_(from), to_(to) {
    if (scale_ == Axis::Scale::log2 || scale_ == Axis::Scale::log10) {
      logarithmic({unit(values.least), unit(values.most)}, lines);
    } else {
      linear(values, lines);
    }
  }
  [[nodiscard]] double at(double value) const { return from_ + (unit(value) - low_) / (high_ - low_) * (to_ - from_); }
  [[nodiscard]] const std::vector<double>& ticks() const { return ticks_; }

 private:
  [[nodiscard]] double unit(double value) const {
    return scale_ == Axis::Scale::log2 ? std::log2(value) : scale_ == Axis::Scale::log10 ? std::log10(value) : value;
  }

  void linear(Range values, int lines) {
    const bool counted = scale_ == Axis::Scale::counted;
    if (counted) {
      values = {std::min(values.least, 0.0), std::max(values.most, std::min(values.least, 0.0) + 1)};
    } else if (values.most - values.least <= 1e-9 * std::max(std::abs(values.most), std::abs(values.least))) {
      const double room = std::abs(values.least) / 2;  // room below and above a single value
      values = {values.least - room, values.most == 0 ? 1 : values.most + room};
    }
    const double step = std::max(counted ? 1.0 : 0.0, nice_step(values.most - values.least, lines));
    low_ = std::floor(values.least / step + 1e-9) * step;
    high_ = std::ceil(values.most / step - 1e-9) * step;
    for (int i = 0; i <= std::lround((high_ - low_) / step); ++i) {
      const double value = low_ + i * step;
      ticks_.push_back(std::abs(value) < step / 1e6 ? 0 : value);  // rounding may leave a small number in place of 0
    }
  }

  void logarithmic(const Range& units, int lines) {
    // The axis covers at least about a decade, so that small variations of a flat curve look small.
    const double room = std::max({0.06 * (units.most - units.least), 0.1, (1 - units.most + units.least) / 2});
    low_ = units.least - room;
    high_ = units.most + room;
    if (scale_ == Axis::Scale::log2) {
      const int step = 2 * static_cast<int>(std::ceil((high_ - low_) / lines / 2));
      for (int power = step * static_cast<int>(std::ceil(low_ / step)); power <= high_; power += step) {
        ticks_.push_back(std::ldexp(1.0, power));
      }
      return;
    }
    for (int power = static_cast<int>(std::floor(low_)); power <= high_; ++power) {
      for (const int digit : {1, 2, 5}) {
        const double value = digit * std::pow(10.0, power);
        if (unit(value) >= low_ && unit(value) <= high_ && (digit == 1 || high_ - low_ < 2.2)) {
          ticks_.push_back(value);
        }
      }
    }
  }

  Axis::Scale scale_;
  double from_, to_;
  double low_ = 0, high_ = 1;  // ends of the axis, as unit() returns them
  std::vector<double> ticks_;
};

struct Frame {
  double left, right, top, bottom;
};

/// The right end of a curve, where its label stands.
struct End {
  double y;
  int colour;
  std::string label;
};

/// Returns the labels of the curves in the order of the curves' ends. Labels are at least 16 pixels apart and not below
/// `lowest`.
std::string end_labels(std::vector<End> ends, double left, double lowest) {
  constexpr double kApart = 16;
  std::ranges::stable_sort(ends, {}, &End::y);
  for (std::size_t i = 1; i < ends.size(); ++i) {
    ends[i].y = std::max(ends[i].y, ends[i - 1].y + kApart);
  }
  std::string out;
  for (std::size_t i = ends.size(); i-- > 0; lowest = ends[i].y - kApart) {
    ends[i].y = std::min(ends[i].y, lowest);
    out += text_at(left, ends[i].y, ends[i].label, concat("class=\"label c", ends[i].colour, '"'));
  }
  return out;
}

std::string draw_in(const Frame& f, const Panel& panel, bool labels) {
  Range across;
  Range up;
  for (const Curve& curve : panel.curves) {
    for (const PlotPoints* points : {&curve.dots, &curve.line}) {
      for (const auto& [x, y] : *points) {
        across.add(x);
        up.add(y);
      }
    }
  }
  if (across.least > across.most) {
    return text_at((f.left + f.right) / 2, (f.top + f.bottom) / 2, "nothing measured", kMiddle);
  }
  for (const Mark& limit : panel.limits) {
    up.most = std::max(up.most, limit.value);
  }
  for (const Mark& mark : panel.marks) {
    across.most = std::max(across.most, mark.value);
  }
  const PlacedAxis x(panel.x, across, f.left, f.right, std::max(1, static_cast<int>((f.right - f.left) / 70)));
  const PlacedAxis y(panel.y, up, f.bottom, f.top, 5);
  std::string out = text_at((f.left + f.right) / 2, f.bottom + 34, panel.x.name, kMiddle);
  for (const double value : x.ticks()) {
    out += line_at(x.at(value), f.top, x.at(value), f.bottom, "grid");
    out += text_at(x.at(value), f.bottom + 17, trimmed(panel.x.text(value)), kMiddle);
  }
  for (const double value : y.ticks()) {
    out += line_at(f.left, y.at(value), f.right, y.at(value), "grid");
    out += text_at(f.left - 7, y.at(value) + 4, trimmed(panel.y.text(value)), kEnd);
  }
  for (const Mark& limit : panel.limits) {
    out += line_at(f.left, y.at(limit.value), f.right, y.at(limit.value), "limit");
    out += text_at(f.left + 8, y.at(limit.value) - 6, limit.label);
  }
  for (const Mark& mark : panel.marks) {
    out += line_at(x.at(mark.value), f.top, x.at(mark.value), f.bottom, concat("mark c", mark.colour % kSvgColours),
                   mark.label);
  }
  std::vector<End> ends;
  for (const bool thin : {true, false}) {  // thick curves are drawn last, on top
    for (std::size_t i = 0; i < panel.curves.size(); ++i) {
      const Curve& curve = panel.curves[i];
      const PlotPoints& line = curve.line.empty() ? curve.dots : curve.line;
      if (curve.dots.empty() != thin || line.empty()) {
        continue;
      }
      const int colour = curve.colour.value_or(static_cast<int>(i)) % kSvgColours;
      std::string points;
      for (const auto& [at, value] : line) {
        points += concat(points.empty() ? "" : " ", pixels(x.at(at)), ',', pixels(y.at(value)));
      }
      out += concat("<polyline class=\"curve c", colour, thin ? " thin" : "", "\" points=\"", points, "\"><title>",
                    escaped(curve.label), "</title></polyline>\n");
      for (const auto& [at, value] : curve.dots) {
        out += dot_at(x.at(at), y.at(value), colour,
                      concat(curve.label, ", ", panel.x.text(at), ": ", panel.y.text(value)));
      }
      ends.push_back({y.at(line.back().second) + 4, colour, curve.label});
    }
  }
  return labels ? out + end_labels(std::move(ends), f.right + 8, f.bottom) : out;
}

std::string begin_plot(double height, const std::string& title, const std::string& subtitle) {
  return concat(begin_svg(kPlotWidth, height, title), "<title>", escaped(title), "</title>\n<style>", kSvgStyle,
                "</style>\n", text_at(20, 30, title, "class=\"title\""), text_at(20, 50, subtitle));
}

}  // namespace

std::string draw(const Panel& panel) {
  const Frame frame{.left = 62, .right = 542, .top = 12, .bottom = 232};
  return begin_svg(frame.right + 18, frame.bottom + 38, panel.title) + draw_in(frame, panel, false) + "</svg>\n";
}

std::string line_plots(const std::string& title, const std::string& subtitle, const std::vector<Panel>& panels) {
  constexpr double kHeight = 430;
  std::string out = begin_plot(kHeight, title, subtitle);
  const double width = (kPlotWidth - 20) / static_cast<double>(panels.size());
  double left = 20;
  for (const Panel& panel : panels) {
    std::size_t longest = 0;
    for (const Curve& curve : panel.curves) {
      longest = std::max(longest, curve.label.size());
    }
    const double label_room = std::min(16 + 7.0 * static_cast<double>(longest), width / 2);  // 7 pixels per letter
    out += text_at(left, 84, panel.title, "class=\"panel\"");
    out += draw_in({left + kAxisRoom, left + width - label_room, 100, kHeight - 48}, panel, true);
    left += width;
  }
  return out + "</svg>\n";
}

std::string heat_map(const HeatMap& map) {
  constexpr double kLeft = 110;
  constexpr double kTop = 104;
  const auto count = static_cast<double>(std::max<std::size_t>(map.ranks.size(), 1));
  const double cell = std::clamp(480.0 / count, 10.0, 84.0);
  const double side = cell * count;
  std::string out = begin_plot(std::max(kTop + side + 30, 230.0), map.title, map.subtitle);
  Range rates;
  for (const std::vector<double>& row : map.bytes_per_second) {
    for (const double value : row) {
      if (value > 0) {
        rates.add(value);
      }
    }
  }
  if (rates.least > rates.most) {
    return out + text_at(20, 120, "nothing measured") + "</svg>\n";
  }
  // Colours go from pale to deep blue with the share of the largest rate: equal rates have equal colours.
  const auto colour = [&](double value) {
    const double share = value / rates.most;
    return concat("fill=\"rgb(", digits(222 - 205 * share, 0), ',', digits(235 - 153 * share, 0), ',',
                  digits(247 - 100 * share, 0), ")\"");
  };
  out += text_at(kLeft + side / 2, kTop - 26, "to rank", kMiddle);
  out += text_at(20, kTop + side / 2, "from rank");
  const std::size_t named = cell >= 18 ? 1 : 4;
  for (std::size_t i = 0; i < map.ranks.size(); ++i) {
    const double y = kTop + static_cast<double>(i) * cell;
    if (i % named == 0) {
      const std::string rank = std::to_string(map.ranks[i]);
      out += text_at(kLeft + (static_cast<double>(i) + 0.5) * cell, kTop - 8, rank, kMiddle);
      out += text_at(kLeft - 10, y + cell / 2 + 4, rank, kEnd);
    }
    for (std::size_t j = 0; j < map.ranks.size(); ++j) {
      const double value = map.bytes_per_second[i][j];
      const double x = kLeft + static_cast<double>(j) * cell;
      out += rect_at(x + 1, y + 1, cell - 2, cell - 2,
                     value > 0 ? colour(value) : "fill=\"#8c959f\" fill-opacity=\".15\"");
      if (value > 0 && cell >= 34) {
        out += text_at(x + cell / 2, y + cell / 2 + 4, digits(value * 1e-9, value >= 9.995e9 ? 1 : 2),
                       concat("class=\"value\" text-anchor=\"middle\" style=\"fill:",
                              value > rates.most / 2 ? "#fff" : "#1f2328", '"'));
      }
    }
  }
  const double scale = kLeft + side + 40;
  out += rect_at(scale, kTop, 14, 14, colour(rates.most)) +
         text_at(scale + 22, kTop + 12, "fastest pair " + rate_text(rates.most));
  out += rect_at(scale, kTop + 22, 14, 14, colour(rates.least)) +
         text_at(scale + 22, kTop + 34, "slowest pair " + rate_text(rates.least));
  return out + "</svg>\n";
}

}  // namespace lockstep::tools
