#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

/// JPEG by libjpeg-turbo and PNG by libpng; their headers are included in this folder only, and this one is the same in
/// every build. Functions share nothing, so any number of threads may call them. `name` is the file's name for error
/// texts. DataError: the bytes are no JPEG or PNG file, are damaged or end too early, or are more than the limits.
namespace lockstep::nn::images {

/// False in a build without these libraries (LOCKSTEP_IMAGES): the functions below throw UnsupportedError.
[[nodiscard]] bool available();

inline constexpr std::uint64_t kMaxFileBytes = std::uint64_t{1} << 28;
/// Of one picture: 400 MB when decoded, and 800 MB more for a progressive JPEG. What claims more, or more than its file
/// can hold, is refused before memory is taken for it.
inline constexpr std::int64_t kMaxPixels = std::int64_t{1} << 27;

enum class Format : unsigned char { jpeg, png };

/// What the beginning of a file says.
struct Header {
  Format format = Format::jpeg;
  std::int64_t width = 0;  ///< as stored, before the orientation
  std::int64_t height = 0;
  int orientation = 1;  ///< EXIF's: 1 to 8; 1 where there is none or it is none of these
};
[[nodiscard]] Header read_header(std::span<const std::uint8_t> file, const std::string& name);

/// Whether a JPEG file is one that nvJPEG reads: grey or YCbCr, Huffman codes, chroma sampled in a usual way.
[[nodiscard]] bool plain_jpeg(std::span<const std::uint8_t> file, const std::string& name);

/// Decoded, as stored: (height, width, 3) u8. The memory stays for the next picture.
struct Picture {
  std::int64_t width = 0;
  std::int64_t height = 0;
  int shrink = 1;  ///< a pixel stands for shrink x shrink stored ones
  std::vector<std::uint8_t> pixels;
};

/// Decodes the whole file. `header` is its read_header(). shrink: 1, 2, 4 or 8; a JPEG is decoded at 1 / shrink of its
/// size, rounded up, which takes less time; a PNG ignores it. Grey becomes three equal channels. CMYK and YCCK, taken
/// as Adobe writes them (inverted), become RGB without a colour profile. 16 bits become 8, rounded. An alpha channel
/// and a transparent colour are dropped, gamma and colour profiles ignored. So all pixels are those that Pillow's
/// convert("RGB") gives, except those of 16 bits (grey, RGB, RGBA), which Pillow cuts. A JPEG whose coded data is
/// damaged is refused even where the library would go on; bytes between its markers and behind its end are not looked
/// at.
void decode(std::span<const std::uint8_t> file, const std::string& name, const Header& header, int shrink,
            Picture& out);

}  // namespace lockstep::nn::images
