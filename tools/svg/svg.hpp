#pragma once

#include <string>

/// Functions that return parts of SVG and HTML documents as text. Coordinates are in pixels from the upper left corner
/// and are written with one decimal.
namespace lockstep::tools {

/// Rules for <style>: lines, curves, texts, and the classes c0 to c7, which set `color` to colours that people with any
/// colour vision can distinguish. The rules suit light and dark pages.
extern const char* const kSvgStyle;
inline constexpr int kSvgColours = 8;
inline constexpr const char* kMiddle = "text-anchor=\"middle\"";  ///< attribute that centres a text at its position
inline constexpr const char* kEnd = "text-anchor=\"end\"";

/// Returns a text for SVG and HTML: <, >, & and quotes are replaced; control characters and bytes that are not UTF-8
/// become \xNN.
[[nodiscard]] std::string escaped(const std::string& text);
/// Formats `value` with 4 significant digits. Numbers from 1e4 on get k, M or G ("1.234M"); numbers from 1e12 on or
/// below 1e-3 get an exponent ("1e12").
[[nodiscard]] std::string brief(double value);
/// Removes zeros from the end of a number's decimals: returns "10 us" for "10.0 us".
[[nodiscard]] std::string trimmed(std::string text);

[[nodiscard]] std::string pixels(double value);
/// Returns the start of an SVG image; the caller ends it by "</svg>\n".
[[nodiscard]] std::string begin_svg(double width, double height, const std::string& title);
[[nodiscard]] std::string text_at(double x, double y, const std::string& text, const std::string& attributes = "");
[[nodiscard]] std::string line_at(double x1, double y1, double x2, double y2, const std::string& classes,
                                  const std::string& title = "");
[[nodiscard]] std::string rect_at(double x, double y, double width, double height, const std::string& attributes,
                                  const std::string& title = "");
[[nodiscard]] std::string dot_at(double x, double y, int colour, const std::string& title = "");

}  // namespace lockstep::tools
