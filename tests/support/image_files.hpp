#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

/// Writes JPEG and PNG files for tests, by the libraries that read them.
namespace lockstep::testing {

/// (height, width, channels), 8 bits; of a PNG with bits = 16 two bytes a value, the higher one first.
struct Pixels {
  std::int64_t width = 0;
  std::int64_t height = 0;
  int channels = 3;
  std::vector<std::uint8_t> values{};
};

/// `value` of row, column and channel.
[[nodiscard]] Pixels pixels(std::int64_t width, std::int64_t height, int channels,
                            const std::function<int(std::int64_t, std::int64_t, int)>& value);

struct JpegOptions {
  int quality = 100;
  bool half_colours = false;  ///< 4:2:0, else 4:4:4
  int rows_of_luma = 1;       ///< without half_colours: to one of chroma, 1 to 4
  bool arithmetic = false;    ///< codes; else Huffman's
  bool progressive = false;
  bool scan_a_channel = false;  ///< three scans that are not progressive
  std::string exif{};           ///< TIFF data; empty: none
};
/// One channel: grey. Three: RGB, stored as YCbCr. Four: CMYK as given, with Adobe's marker.
[[nodiscard]] std::string jpeg(const Pixels& pixels, const JpegOptions& options = {});

struct PngOptions {
  int bits = 8;  ///< bits of a value; below 8 one byte a value is packed here
  bool interlaced = false;
  std::vector<std::uint8_t> palette{};  ///< RGB of the numbers that the one channel holds
  std::string exif{};
};
/// One channel: grey. Two, four: the last is alpha.
[[nodiscard]] std::string png(const Pixels& pixels, const PngOptions& options = {});

/// TIFF data with an orientation alone.
[[nodiscard]] std::string exif(int orientation, bool big_endian = false);

}  // namespace lockstep::testing
