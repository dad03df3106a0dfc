#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

/// Writes JPEG and PNG files for tests, with the libraries that also read them.
namespace lockstep::testing {

/// An image of shape (height, width, channels) with 8 bits a value. For a PNG with bits = 16: two bytes a value, the
/// higher byte first.
struct Pixels {
  std::int64_t width = 0;
  std::int64_t height = 0;
  int channels = 3;
  std::vector<std::uint8_t> values{};
};

/// Returns the image whose values are value(row, column, channel).
[[nodiscard]] Pixels pixels(std::int64_t width, std::int64_t height, int channels,
                            const std::function<int(std::int64_t, std::int64_t, int)>& value);

struct JpegOptions {
  int quality = 100;
  bool half_colours = false;  ///< true: 4:2:0 (colours at half the resolution); false: 4:4:4
  int rows_of_luma = 1;       ///< without half_colours: rows of luma for each row of chroma, 1 to 4
  bool arithmetic = false;    ///< true: arithmetic codes; false: Huffman codes
  bool progressive = false;
  bool scan_a_channel = false;  ///< each channel in a scan of its own, without progressive coding
  std::string exif{};           ///< TIFF data; empty: none
};
/// Returns a JPEG file. One channel: grey. Three: RGB, stored as YCbCr. Four: CMYK without conversion, with Adobe's
/// marker.
[[nodiscard]] std::string jpeg(const Pixels& pixels, const JpegOptions& options = {});

struct PngOptions {
  int bits = 8;  ///< bits of a value in the file; for fewer than 8 bits, Pixels has one value per byte
  bool interlaced = false;
  std::vector<std::uint8_t> palette{};  ///< RGB colours; the only channel holds indices into them; empty: no palette
  std::string exif{};
};
/// Returns a PNG file. One channel: grey. Two or four channels: the last is alpha.
[[nodiscard]] std::string png(const Pixels& pixels, const PngOptions& options = {});

/// Returns TIFF data that holds only an orientation.
[[nodiscard]] std::string exif(int orientation, bool big_endian = false);

}  // namespace lockstep::testing
