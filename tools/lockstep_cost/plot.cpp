#include "tools/lockstep_cost/plot.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/units.hpp>

namespace lockstep::tools {

namespace {

constexpr double kWidth = 880;

/// Readable on white and on black; colours that people with colour blindness can tell apart (after Okabe and Ito).
constexpr const char* kColours[] = {"#2b7bba", "#d9770f", "#1f9d76", "#a361b8", "#c8453e", "#7a7f2e"};

constexpr const char* kStyle =
    "<style>\n"
    "text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,'DejaVu "
    "Sans',sans-serif;font-size:12px;"
    "fill:#57606a}\n"
    ".title{font-size:17px;font-weight:600;fill:#1f2328}\n"
    ".panel{font-size:13px;font-weight:600;fill:#1f2328}\n"
    ".label{font-weight:600}\n"
    ".value{font-size:12px;font-weight:600}\n"
    ".grid{stroke:#8c959f;stroke-opacity:.28;stroke-width:1}\n"
    ".faint{stroke:#8c959f;stroke-opacity:.13;stroke-width:1}\n"
    ".axis{stroke:#8c959f;stroke-opacity:.8;stroke-width:1}\n"
    ".limit{stroke:#6e7781;stroke-width:1.2;stroke-dasharray:6 4}\n"
    ".curve{fill:none;stroke-width:2.2;stroke-linejoin:round;stroke-linecap:round}\n"
    "@media (prefers-color-scheme:dark){text{fill:#9198a1}.title,.panel{fill:#f0f6fc}.limit{stroke:#9198a1}}\n"
    "</style>\n";

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

std::string n(double value) {
  return digits(value, 1);
}

std::string text_at(double x, double y, const std::string& text, const std::string& attributes = "") {
  return concat("<text x=\"", n(x), "\" y=\"", n(y), "\"", attributes.empty() ? "" : " ", attributes, ">",
                escaped(text), "</text>\n");
}

std::string line_at(double x1, double y1, double x2, double y2, const char* kind) {
  return concat("<line class=\"", kind, "\" x1=\"", n(x1), "\" y1=\"", n(y1), "\" x2=\"", n(x2), "\" y2=\"", n(y2),
                "\"/>\n");
}

std::string begin_svg(double height, const std::string& title, const std::string& subtitle) {
  return concat("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", n(kWidth), " ", n(height), "\" width=\"",
                n(kWidth), "\" height=\"", n(height), "\" role=\"img\" aria-label=\"", escaped(title), "\">\n",
                "<title>", escaped(title), "</title>\n", kStyle, text_at(20, 30, title, "class=\"title\""),
                text_at(20, 50, subtitle));
}

/// The data of a panel and where they are drawn.
struct Frame {
  double left = 0;
  double right = 0;
  double top = 0;
  double bottom = 0;
  double x_low = 0;  ///< log2 of bytes
  double x_high = 0;
  double y_low = 0;  ///< height() of the value
  double y_high = 0;
  bool linear = false;  ///< shares differ by little, times and rates by powers of ten

  [[nodiscard]] double height(double value) const { return linear ? value : std::log10(value); }

  [[nodiscard]] double x(double bytes) const {
    return left + (std::log2(bytes) - x_low) / (x_high - x_low) * (right - left);
  }
  [[nodiscard]] double y(double value) const {
    return bottom - (height(value) - y_low) / (y_high - y_low) * (bottom - top);
  }
};

/// Limits of the axes: a little wider than the data; physical limits are included where they are near.
bool fit_axes(const Panel& panel, Frame& frame) {
  double x_low = std::numeric_limits<double>::infinity();
  double x_high = -x_low;
  double y_low = x_low;
  double y_high = -x_low;
  for (const Curve& curve : panel.curves) {
    for (const auto& points : {curve.dots, curve.line}) {
      for (const auto& [bytes, value] : points) {
        x_low = std::min(x_low, std::log2(bytes));
        x_high = std::max(x_high, std::log2(bytes));
        y_low = std::min(y_low, frame.height(value));
        y_high = std::max(y_high, frame.height(value));
      }
    }
  }
  if (x_low > x_high) {
    return false;
  }
  for (const Limit& limit : panel.limits) {
    y_high = std::max(y_high, frame.height(limit.value));
  }
  frame.x_low = x_low - 0.3;
  frame.x_high = x_high + 0.3;
  if (frame.linear) {  // at least 5 %, so that a flat curve does not look like a mountain range
    frame.y_low = std::min(std::floor(y_low), y_high - 5);
    frame.y_high = y_high;
    return true;
  }
  const double room = std::max(0.06 * (y_high - y_low), 0.08);
  frame.y_low = y_low - room;
  frame.y_high = y_high + room;
  if (frame.y_high - frame.y_low < 1) {  // a flat curve must not look like a mountain range
    const double middle = (frame.y_high + frame.y_low) / 2;
    frame.y_low = middle - 0.5;
    frame.y_high = middle + 0.5;
  }
  return true;
}

std::string exact_value(Scale scale, double value) {
  switch (scale) {
    case Scale::seconds:
      return seconds_text(value);
    case Scale::bytes_per_second:
      return rate_text(value);
    case Scale::percent:
      break;
  }
  return percent_text(value / 100);
}

std::string size_text(Axis over, double size) {
  return over == Axis::bytes ? bytes_text(size) : std::to_string(static_cast<std::int64_t>(size));
}

std::string value_text(Scale scale, double value) {
  std::string text = exact_value(scale, value);
  const std::size_t dot = text.find('.');  // ticks are round: "10.0 us" is 10 us
  if (dot != std::string::npos) {
    const std::size_t space = text.find(' ');
    std::size_t end = space;
    while (end > dot + 1 && text[end - 1] == '0') {
      --end;
    }
    text.erase(end == dot + 1 ? dot : end, space - (end == dot + 1 ? dot : end));
  }
  return text;
}

std::string axes(const Panel& panel, const Frame& f) {
  std::string out;
  // Sizes: a line every factor of 4, named as often as there is room.
  const double octave = (f.right - f.left) / (f.x_high - f.x_low);
  const double room = panel.over == Axis::bytes ? 58 : 40;  // of a name
  const int step = octave * 4 >= room ? 4 : (octave * 6 >= room ? 6 : 8);
  for (int power = static_cast<int>(std::ceil(f.x_low)); power <= f.x_high; ++power) {
    const double x = f.x(std::ldexp(1.0, power));
    if (power % step == 0) {
      out += line_at(x, f.top, x, f.bottom, "grid");
      out += text_at(x, f.bottom + 18, size_text(panel.over, std::ldexp(1.0, power)), "text-anchor=\"middle\"");
    } else if (power % 2 == 0) {
      out += line_at(x, f.top, x, f.bottom, "faint");
    }
  }
  if (f.linear) {
    constexpr double kMostLines = 6;
    double tick = 1;
    for (const double factor : {2.0, 2.5, 2.0, 2.0, 2.5}) {
      tick *= (f.y_high - f.y_low) / tick > kMostLines ? factor : 1;
    }
    for (double value = std::ceil(f.y_low / tick) * tick; value <= f.y_high; value += tick) {
      out += line_at(f.left, f.y(value), f.right, f.y(value), "grid");
      out += text_at(f.left - 8, f.y(value) + 4, value_text(panel.scale, value), "text-anchor=\"end\"");
    }
    return out + line_at(f.left, f.bottom, f.right, f.bottom, "axis");
  }
  // Values: powers of ten, and 2 and 5 between them where these are few.
  const bool fine = f.y_high - f.y_low < 2.2;
  for (int power = static_cast<int>(std::floor(f.y_low)); power <= f.y_high; ++power) {
    for (const int digit : {1, 2, 5}) {
      const double value = digit * std::pow(10.0, power);
      if (std::log10(value) < f.y_low || std::log10(value) > f.y_high) {
        continue;
      }
      const double y = f.y(value);
      out += line_at(f.left, y, f.right, y, digit == 1 ? "grid" : "faint");
      if (digit == 1 || fine) {
        out += text_at(f.left - 8, y + 4, value_text(panel.scale, value), "text-anchor=\"end\"");
      }
    }
  }
  out += line_at(f.left, f.bottom, f.right, f.bottom, "axis");
  return out;
}

/// Vertical places for labels, in the order of `wanted` and near it, at least `apart` from each other and not below
/// `lowest`.
std::vector<double> spread(const std::vector<double>& wanted, double apart, double lowest) {
  std::vector<std::size_t> order(wanted.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    order[i] = i;
  }
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return wanted[a] < wanted[b]; });
  std::vector<double> places(wanted.size());
  double least = -std::numeric_limits<double>::infinity();
  for (const std::size_t i : order) {
    places[i] = std::max(wanted[i], least);
    least = places[i] + apart;
  }
  double most = lowest;
  for (std::size_t k = order.size(); k-- > 0;) {
    places[order[k]] = std::min(places[order[k]], most);
    most = places[order[k]] - apart;
  }
  return places;
}

std::string path_data(const Frame& f, const std::vector<std::pair<double, double>>& points) {
  std::string data;
  for (const auto& [bytes, value] : points) {
    data += concat(data.empty() ? "M" : " L", n(f.x(bytes)), " ", n(f.y(value)));
  }
  return data;
}

std::string draw(const Panel& panel, Frame f) {
  f.linear = panel.scale == Scale::percent;
  std::string out = text_at(f.left - 58, f.top - 16, panel.title, "class=\"panel\"");
  if (!fit_axes(panel, f)) {
    return out + text_at((f.left + f.right) / 2, (f.top + f.bottom) / 2, "nothing measured", "text-anchor=\"middle\"");
  }
  out += axes(panel, f);
  for (const Limit& limit : panel.limits) {
    const double y = f.y(limit.value);
    out += line_at(f.left, y, f.right, y, "limit");
    out += text_at(f.left + 8, y - 6, limit.label);
  }
  std::vector<double> ends;
  std::vector<std::size_t> drawn;
  for (std::size_t i = 0; i < panel.curves.size(); ++i) {
    const Curve& curve = panel.curves[i];
    if (curve.dots.empty()) {
      continue;
    }
    const char* colour = kColours[i % std::size(kColours)];
    out += concat("<path class=\"curve\" stroke=\"", colour, "\" d=\"",
                  path_data(f, curve.line.empty() ? curve.dots : curve.line), "\"/>\n");
    for (const auto& [bytes, value] : curve.dots) {
      out += concat(
          "<circle cx=\"", n(f.x(bytes)), "\" cy=\"", n(f.y(value)), "\" r=\"3.1\" fill=\"", colour, "\"><title>",
          escaped(concat(curve.label, ", ", size_text(panel.over, bytes), ": ", exact_value(panel.scale, value))),
          "</title></circle>\n");
    }
    ends.push_back(f.y(curve.dots.back().second) + 4);
    drawn.push_back(i);
  }
  const std::vector<double> places = spread(ends, 16, f.bottom);
  for (std::size_t k = 0; k < drawn.size(); ++k) {
    out += text_at(f.right + 8, places[k], panel.curves[drawn[k]].label,
                   concat("class=\"label\" style=\"fill:", kColours[drawn[k] % std::size(kColours)], "\""));
  }
  return out;
}

/// Width of the labels at the right, estimated for common fonts.
double label_room(const Panel& panel) {
  std::size_t longest = 0;
  for (const Curve& curve : panel.curves) {
    longest = std::max(longest, curve.label.size());
  }
  return 16 + 7.0 * static_cast<double>(longest);
}

/// From a pale to a deep blue, by the value as a share of the largest.
struct Colour {
  std::string fill;
  bool dark = false;
};

Colour colour_of(double share) {
  const double low[] = {222, 235, 247};
  const double high[] = {17, 82, 147};
  Colour colour;
  colour.fill = "rgb(";
  for (int i = 0; i < 3; ++i) {
    colour.fill += concat(i == 0 ? "" : ",", digits(low[i] + share * (high[i] - low[i]), 0));
  }
  colour.fill += ")";
  colour.dark = share > 0.5;
  return colour;
}

}  // namespace

std::string line_plots(const std::string& title, const std::string& subtitle, const std::vector<Panel>& panels) {
  constexpr double kHeight = 430;
  std::string out = begin_svg(kHeight, title, subtitle);
  double left = 20;
  const double width = (kWidth - 20) / static_cast<double>(std::max<std::size_t>(panels.size(), 1));
  for (const Panel& panel : panels) {
    Frame frame;
    frame.left = left + 58;
    frame.right = left + width - std::min(label_room(panel), width / 2);
    frame.top = 100;
    frame.bottom = kHeight - 48;
    out += draw(panel, frame);
    out += text_at((frame.left + frame.right) / 2, kHeight - 12,
                   panel.over == Axis::bytes ? "size of the message" : "ranks", "text-anchor=\"middle\"");
    left += width;
  }
  return out + "</svg>\n";
}

std::string heat_map(const HeatMap& map) {
  const std::size_t count = map.ranks.size();
  const double cell = std::clamp(480.0 / static_cast<double>(std::max<std::size_t>(count, 1)), 10.0, 84.0);
  const double side = cell * static_cast<double>(count);
  const double left = 110;
  const double top = 104;
  const double height = std::max(top + side + 30, 230.0);
  std::string out = begin_svg(height, map.title, map.subtitle);
  double least = std::numeric_limits<double>::infinity();
  double most = 0;
  for (const std::vector<double>& row : map.bytes_per_second) {
    for (const double value : row) {
      if (value > 0) {
        least = std::min(least, value);
        most = std::max(most, value);
      }
    }
  }
  if (!(most > 0)) {
    return out + text_at(20, 120, "nothing measured") + "</svg>\n";
  }
  // Colour by the share between nothing and the largest: cells look alike when they are alike.
  const std::size_t named = cell >= 18 ? 1 : 4;
  out += text_at(left + side / 2, top - 26, "to rank", "text-anchor=\"middle\"");
  out += concat("<text x=\"0\" y=\"0\" text-anchor=\"middle\" transform=\"translate(", n(left - 40), " ",
                n(top + side / 2), ") rotate(-90)\">from rank</text>\n");
  for (std::size_t i = 0; i < count; ++i) {
    const double middle = (static_cast<double>(i) + 0.5) * cell;
    if (i % named == 0) {
      out += text_at(left + middle, top - 8, std::to_string(map.ranks[i]), "text-anchor=\"middle\"");
      out += text_at(left - 10, top + middle + 4, std::to_string(map.ranks[i]), "text-anchor=\"end\"");
    }
    for (std::size_t j = 0; j < count; ++j) {
      const double value = map.bytes_per_second[i][j];
      const double x = left + static_cast<double>(j) * cell;
      const double y = top + static_cast<double>(i) * cell;
      const Colour colour = colour_of(std::max(value, 0.0) / most);
      const std::string style =
          value > 0 ? concat("fill=\"", colour.fill, "\"") : "fill=\"#8c959f\" fill-opacity=\".15\"";
      out += concat("<rect x=\"", n(x + 1), "\" y=\"", n(y + 1), "\" width=\"", n(cell - 2), "\" height=\"",
                    n(cell - 2), "\" rx=\"3\" ", style, "/>\n");
      if (value > 0 && cell >= 34) {
        const std::string number = digits(value * 1e-9, value >= 9.995e9 ? 1 : 2);
        out += text_at(
            x + cell / 2, y + cell / 2 + 4, number,
            concat("class=\"value\" text-anchor=\"middle\" style=\"fill:", colour.dark ? "#ffffff" : "#1f2328", "\""));
      }
    }
  }
  // The scale.
  const double scale_x = left + side + 40;
  const double scale_height = std::max(side, 96.0);
  constexpr int kSteps = 48;
  for (int i = 0; i < kSteps; ++i) {
    const double share = 1 - (i + 0.5) / kSteps;
    out += concat("<rect x=\"", n(scale_x), "\" y=\"", n(top + i * scale_height / kSteps), "\" width=\"14\" height=\"",
                  n(scale_height / kSteps + 0.6), "\" fill=\"", colour_of(share).fill, "\"/>\n");
  }
  out += text_at(scale_x + 22, top + 10, rate_text(most));
  out += text_at(scale_x + 22, top + scale_height, "0");
  const double slowest = top + (1 - least / most) * scale_height;
  if (slowest - top > 16 && top + scale_height - slowest > 14) {
    out += line_at(scale_x - 3, slowest, scale_x + 17, slowest, "axis");
    out += text_at(scale_x + 22, slowest + 4, concat("slowest pair ", rate_text(least)));
  }
  return out + "</svg>\n";
}

}  // namespace lockstep::tools
