#pragma once

#include <string>

/// Pieces of SVG and HTML as text. Coordinates are pixels from the upper left corner, written to a tenth.
namespace lockstep::tools {

/// Rules for <style>: lines, curves, texts, and the classes c0 to c7, which set `color` to colours that people with any
/// colour vision tell apart. Readable on light and dark pages.
extern const char* const kSvgStyle;
inline constexpr int kSvgColours = 8;
inline constexpr const char* kMiddle = "text-anchor=\"middle\"";  ///< attributes of a text
inline constexpr const char* kEnd = "text-anchor=\"end\"";

/// Text for SVG and HTML: <, >, &, and quotes mean nothing; control characters and what is not UTF-8 as \xNN.
[[nodiscard]] std::string escaped(const std::string& text);
/// A number for people: 4 significant digits; "1.234M" from 1e4 on, "1e12" from there on and below 1e-3.
[[nodiscard]] std::string brief(double value);
/// The text of a number without zeros at the end of its decimals: "10.0 us" as "10 us".
[[nodiscard]] std::string trimmed(std::string text);

[[nodiscard]] std::string pixels(double value);
/// The start of a picture, to be ended by "</svg>\n".
[[nodiscard]] std::string begin_svg(double width, double height, const std::string& title);
[[nodiscard]] std::string text_at(double x, double y, const std::string& text, const std::string& attributes = "");
[[nodiscard]] std::string line_at(double x1, double y1, double x2, double y2, const std::string& classes,
                                  const std::string& title = "");
[[nodiscard]] std::string rect_at(double x, double y, double width, double height, const std::string& attributes,
                                  const std::string& title = "");
[[nodiscard]] std::string dot_at(double x, double y, int colour, const std::string& title = "");

}  // namespace lockstep::tools
