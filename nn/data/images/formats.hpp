#pragma once

#include <cstdint>
#include <span>
#include <string>

#include <lockstep/nn/data/images/decode.hpp>

/// Functions that read_header() and decode() call. Each function uses only one of libjpeg-turbo and libpng.
namespace lockstep::nn::images {

[[nodiscard]] Header jpeg_header(std::span<const std::uint8_t> file, const std::string& name);
void decode_jpeg(std::span<const std::uint8_t> file, const std::string& name, int shrink, Picture& out);
[[nodiscard]] Header png_header(std::span<const std::uint8_t> file, const std::string& name);
void decode_png(std::span<const std::uint8_t> file, const std::string& name, Picture& out);

/// Throws DataError if a picture has no pixels or more than kMaxPixels pixels. `name` names the file in the error.
void require_size(const std::string& name, std::uint64_t width, std::uint64_t height);
/// Returns the orientation that the EXIF data `tiff` states; the data begins with "II" or "MM". Returns 1 if the data
/// states no orientation or cannot be read.
[[nodiscard]] int exif_orientation(std::span<const std::uint8_t> tiff);

}  // namespace lockstep::nn::images
