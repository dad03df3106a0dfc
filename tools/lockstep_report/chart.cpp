#include "tools/lockstep_report/chart.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/text.hpp>
#include <lockstep/runtime/base/units.hpp>

namespace lockstep::tools {
namespace {

constexpr std::size_t kMostPoints = 1000;  // of a series: about two a pixel
constexpr int kColours = 8;                // classes c0 to c7 of the page's style

/// The smallest of 1, 2, 5, 10, ... times a power of ten that divides `range` into at most `most` steps.
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

/// A coordinate, to a tenth of a pixel.
std::string pixels(double value) {
  return digits(value, 1);
}

std::string line(const ChartScale& scale, const Series& series, const Points& points) {
  std::string at;
  for (const Point& p : points) {
    at += (at.empty() ? "" : " ") + pixels(scale.x(static_cast<double>(p.step))) + "," + pixels(scale.y(p.value));
  }
  const std::string style = concat("c", series.colour % kColours, series.evaluation ? " evaluation" : " training");
  std::string out =
      "<g class=\"" + style + "\"><title>" + escaped(series.label) + "</title><polyline points=\"" + at + "\"/>";
  if (series.evaluation || points.size() == 1) {
    for (const Point& p : points) {
      out += "<circle cx=\"" + pixels(scale.x(static_cast<double>(p.step))) + "\" cy=\"" + pixels(scale.y(p.value)) +
             "\" r=\"2.5\"/>";
    }
  }
  return out + "</g>\n";
}

std::string text_at(double x, double y, const char* anchor, const std::string& text) {
  return "<text x=\"" + pixels(x) + "\" y=\"" + pixels(y) + "\" text-anchor=\"" + anchor + "\">" + escaped(text) +
         "</text>\n";
}

}  // namespace

ChartScale scale_of(const Chart& chart) {
  double first = std::numeric_limits<double>::infinity();
  double last = -first;
  double least = first;
  double most = last;
  for (const Series& series : chart.series) {
    for (const Point& p : series.points) {
      first = std::min(first, static_cast<double>(p.step));
      last = std::max(last, static_cast<double>(p.step));
      least = std::min(least, p.value);
      most = std::max(most, p.value);
    }
  }
  ChartScale scale;
  if (first > last) {
    return scale;  // no point
  }
  for (const Resumed& resumed : chart.resumed) {
    last = std::max(last, static_cast<double>(resumed.step));
  }
  scale.first_step = std::min(first, 0.0);
  scale.last_step = std::max(last, scale.first_step + 1);
  if (most - least <= 1e-9 * std::max(std::abs(most), std::abs(least))) {  // one value: half of it on both sides
    const double room = least == 0 ? 0.5 : std::abs(least) / 2;
    least -= room;
    most += room;
  }
  scale.value_step = nice_step(most - least, 5);
  scale.least = std::floor(least / scale.value_step + 1e-9) * scale.value_step;
  scale.most = std::ceil(most / scale.value_step - 1e-9) * scale.value_step;
  return scale;
}

Points thinned(const Points& points, std::size_t most) {
  if (points.size() <= most) {
    return points;
  }
  const std::size_t ranges = std::max<std::size_t>(most / 2, 1);
  const double first = static_cast<double>(points.front().step);
  const double width = (static_cast<double>(points.back().step) - first + 1) / static_cast<double>(ranges);
  Points kept;
  std::size_t begin = 0;
  for (std::size_t range = 0; range < ranges && begin < points.size(); ++range) {
    const double end = first + width * static_cast<double>(range + 1);
    std::size_t low = begin;
    std::size_t high = begin;
    std::size_t i = begin;
    for (; i < points.size() && (static_cast<double>(points[i].step) < end || range + 1 == ranges); ++i) {
      low = points[i].value < points[low].value ? i : low;
      high = points[i].value > points[high].value ? i : high;
    }
    if (i > begin) {
      kept.push_back(points[std::min(low, high)]);
      if (low != high) {
        kept.push_back(points[std::max(low, high)]);
      }
    }
    begin = i;
  }
  return kept;
}

std::string draw(const Chart& chart) {
  const ChartScale scale = scale_of(chart);
  const double right = ChartScale::kLeft + ChartScale::kWidth;
  const double bottom = ChartScale::kTop + ChartScale::kHeight;
  std::string out = concat("<svg viewBox=\"0 0 ", right + 18, " ", bottom + 38, "\" role=\"img\" aria-label=\"",
                           escaped(chart.title), "\">\n");
  const bool empty = std::ranges::all_of(chart.series, [](const Series& s) { return s.points.empty(); });
  if (empty) {
    return out + text_at(ChartScale::kLeft + ChartScale::kWidth / 2, bottom / 2, "middle", "no finite value") +
           "</svg>\n";
  }
  const auto ticks = static_cast<int>(std::lround((scale.most - scale.least) / scale.value_step));
  for (int i = 0; i <= ticks; ++i) {
    const double value = scale.least + i * scale.value_step;
    const std::string y = pixels(scale.y(value));
    out += "<line class=\"grid\" x1=\"" + pixels(ChartScale::kLeft) + "\" x2=\"" + pixels(right) + "\" y1=\"" + y +
           "\" y2=\"" + y + "\"/>\n";
    // A sum of ticks may miss 0 by a rounding.
    out += text_at(ChartScale::kLeft - 6, scale.y(value) + 4, "end",
                   brief(std::abs(value) < scale.value_step / 1e6 ? 0 : value));
  }
  const double step = std::max(1.0, nice_step(scale.last_step - scale.first_step, 6));
  for (double at = std::ceil(scale.first_step / step) * step; at <= scale.last_step; at += step) {
    const std::string x = pixels(scale.x(at));
    out += "<line class=\"grid\" x1=\"" + x + "\" x2=\"" + x + "\" y1=\"" + pixels(ChartScale::kTop) + "\" y2=\"" +
           pixels(bottom) + "\"/>\n";
    out += text_at(scale.x(at), bottom + 16, "middle", brief(at));
  }
  out += text_at(right, bottom + 32, "end", "step");
  for (const Resumed& resumed : chart.resumed) {
    const std::string x = pixels(scale.x(static_cast<double>(resumed.step)));
    out += concat("<line class=\"resumed c", resumed.colour % kColours, "\" x1=\"", x, "\" x2=\"", x, "\" y1=\"",
                  pixels(ChartScale::kTop), "\" y2=\"", pixels(bottom), "\"><title>", escaped(resumed.label),
                  ": resumed after step ", resumed.step, "</title></line>\n");
  }
  for (const bool evaluation : {false, true}) {  // evaluations lie above
    for (const Series& series : chart.series) {
      if (series.evaluation == evaluation && !series.points.empty()) {
        out += line(scale, series, thinned(series.points, kMostPoints));
      }
    }
  }
  return out + "</svg>\n";
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : displayed(text)) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string brief(double value) {
  const double size = std::abs(value);
  if (size != 0 && (size < 1e-3 || size >= 1e12)) {
    const double power = std::floor(std::log10(size));
    return concat(brief(value / std::pow(10, power)), "e", static_cast<int>(power));
  }
  static constexpr std::array<std::pair<double, const char*>, 3> kUnits{{{1e9, "G"}, {1e6, "M"}, {1e4, "k"}}};
  for (const auto& [unit, name] : kUnits) {
    if (size >= unit) {
      return brief(value / (unit == 1e4 ? 1e3 : unit)) + name;
    }
  }
  const int before = size < 1 ? 1 : static_cast<int>(std::floor(std::log10(size))) + 1;
  std::string text = digits(value, std::max(0, (size < 1 ? 5 : 4) - before));
  if (text.find('.') != std::string::npos) {
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') {
      text.pop_back();
    }
  }
  return text;
}

}  // namespace lockstep::tools
