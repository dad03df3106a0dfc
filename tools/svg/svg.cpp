#include "tools/svg/svg.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <tuple>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/text.hpp>
#include <lockstep/runtime/base/units.hpp>

namespace lockstep::tools {

/// Colours after Okabe and Ito, "Color Universal Design", 2008; the last two are darkened for a white page. On a dark
/// page all colours are lighter.
const char* const kSvgStyle = R"(svg text { font: 12px system-ui, 'Segoe UI', Arial, sans-serif; fill: #57606a; }
svg .title { font-size: 17px; font-weight: 600; fill: #1f2328; } svg .panel { font-weight: 600; fill: #1f2328; }
svg .label { font-weight: 600; fill: currentColor; } svg .dot { fill: currentColor; }
.grid { stroke: #8c959f; stroke-opacity: .28; } .limit { stroke: #6e7781; stroke-dasharray: 6 4; }
.mark { stroke: currentColor; stroke-dasharray: 2 3; }
.curve { fill: none; stroke: currentColor; stroke-width: 2; stroke-linejoin: round; }
.thin { stroke-width: 1.2; opacity: .7; }
.c0 { color: #0072b2; } .c1 { color: #d55e00; } .c2 { color: #009e73; } .c3 { color: #cc79a7; }
.c4 { color: #e69f00; } .c5 { color: #56b4e9; } .c6 { color: #7d7406; } .c7 { color: #777; }
@media (prefers-color-scheme: dark) { svg text { fill: #a0a4a8; } svg .title, svg .panel { fill: #f0f6fc; }
.c0 { color: #4aa8e0; } .c1 { color: #ff8b45; } .c2 { color: #2cc79a; } .c3 { color: #e3a0c5; }
.c4 { color: #f0b83c; } .c5 { color: #8fd0f5; } .c6 { color: #c8bd3c; } .c7 { color: #a0a4a8; } }
)";

namespace {

/// Returns an element without children except for a title, which a mouse over the element shows.
std::string element(const char* name, const std::string& attributes, const std::string& title) {
  return title.empty() ? concat('<', name, ' ', attributes, "/>\n")
                       : concat('<', name, ' ', attributes, "><title>", escaped(title), "</title></", name, ">\n");
}

}  // namespace

std::string escaped(const std::string& text) {
  static const std::map<char, const char*> entities{
      {'<', "&lt;"}, {'>', "&gt;"}, {'&', "&amp;"}, {'"', "&quot;"}, {'\'', "&#39;"}};
  std::string out;
  for (const char c : displayed(text)) {
    const auto found = entities.find(c);
    out += found == entities.end() ? std::string(1, c) : found->second;
  }
  return out;
}

std::string trimmed(std::string text) {
  const std::size_t dot = text.find('.');
  if (dot != std::string::npos) {
    const std::size_t end = std::min(text.find_first_not_of("0123456789", dot + 1), text.size());
    const std::size_t last = text.find_last_not_of('0', end - 1);
    const std::size_t kept = last == dot ? dot : last + 1;
    text.erase(kept, end - kept);
  }
  return text;
}

std::string brief(double value) {
  const double size = std::abs(value);
  if (size != 0 && (size < 1e-3 || size >= 1e12)) {
    const double power = std::floor(std::log10(size));
    return concat(brief(value / std::pow(10, power)), "e", static_cast<int>(power));
  }
  for (const auto& [least, unit, name] : {std::tuple{1e9, 1e9, "G"}, {1e6, 1e6, "M"}, {1e4, 1e3, "k"}}) {
    if (size >= least) {
      return brief(value / unit) + name;
    }
  }
  const int before = size < 1 ? 1 : static_cast<int>(std::floor(std::log10(size))) + 1;
  return trimmed(digits(value, std::max(0, (size < 1 ? 5 : 4) - before)));
}

std::string pixels(double value) {
  return digits(value, 1);
}

std::string begin_svg(double width, double height, const std::string& title) {
  return concat("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", width, ' ', height, "\" width=\"", width,
                "\" height=\"", height, "\" style=\"max-width:100%;height:auto\" role=\"img\" aria-label=\"",
                escaped(title), "\">\n");
}

std::string text_at(double x, double y, const std::string& text, const std::string& attributes) {
  return concat("<text x=\"", pixels(x), "\" y=\"", pixels(y), "\" ", attributes, '>', escaped(text), "</text>\n");
}

std::string line_at(double x1, double y1, double x2, double y2, const std::string& classes, const std::string& title) {
  return element("line",
                 concat("class=\"", classes, "\" x1=\"", pixels(x1), "\" y1=\"", pixels(y1), "\" x2=\"", pixels(x2),
                        "\" y2=\"", pixels(y2), '"'),
                 title);
}

std::string rect_at(double x, double y, double width, double height, const std::string& attributes,
                    const std::string& title) {
  return element("rect",
                 concat("x=\"", pixels(x), "\" y=\"", pixels(y), "\" width=\"", pixels(width), "\" height=\"",
                        pixels(height), "\" ", attributes),
                 title);
}

std::string dot_at(double x, double y, int colour, const std::string& title) {
  return element(
      "circle",
      concat("class=\"dot c", colour % kSvgColours, "\" cx=\"", pixels(x), "\" cy=\"", pixels(y), "\" r=\"2.8\""),
      title);
}

}  // namespace lockstep::tools
