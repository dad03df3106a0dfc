#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

/// Decodes JPEG with libjpeg-turbo and PNG with libpng. Only source files of this folder include the headers of
/// libjpeg-turbo and libpng, so decode.hpp is the same in every build. The functions share no state, so any number of
/// threads may call them. `name` is the file's name for error texts. The functions throw DataError if the bytes are not
/// a JPEG or PNG file, are damaged, end too early, or exceed the limits below.
namespace lockstep::nn::images {

/// Returns whether the build has both libraries (LOCKSTEP_IMAGES). If not, all functions below throw UnsupportedError.
[[nodiscard]] bool available();

inline constexpr std::uint64_t kMaxFileBytes = std::uint64_t{1} << 28;
/// Largest number of pixels of a picture. That many pixels take 400 MB when decoded, and 800 MB more for a progressive
/// JPEG. A file whose header states more pixels than this, or more than the file's bytes can hold, is refused before
/// memory is allocated.
inline constexpr std::int64_t kMaxPixels = std::int64_t{1} << 27;

enum class Format : unsigned char { jpeg, png };

/// Properties of a picture that the beginning of its file states.
struct Header {
  Format format = Format::jpeg;
  std::int64_t width = 0;  ///< columns of the stored picture, before `orientation` turns it
  std::int64_t height = 0;
  int orientation = 1;  ///< EXIF orientation, 1 to 8; 1 if the file states none or an invalid one
};
[[nodiscard]] Header read_header(std::span<const std::uint8_t> file, const std::string& name);

/// Returns true if nvJPEG can read the JPEG `file`: grey or YCbCr, Huffman codes, a usual subsampling of chroma.
[[nodiscard]] bool plain_jpeg(std::span<const std::uint8_t> file, const std::string& name);

/// Decoded pixels of a picture before its orientation turns it: u8 (height, width, 3). Each decode() into the same
/// Picture reuses the memory of `pixels`.
struct Picture {
  std::int64_t width = 0;
  std::int64_t height = 0;
  int shrink = 1;  ///< a pixel stands for shrink x shrink pixels of the file
  std::vector<std::uint8_t> pixels;
};

/// Decodes the whole file into `out`. `header` must be the result of read_header(). `shrink` must be 1, 2, 4 or 8. A
/// JPEG picture is decoded at 1 / shrink of its size, rounded up, which takes less time. A PNG picture is decoded at
/// its full size.
///
/// Grey becomes three equal channels. CMYK and YCCK become RGB without a colour profile; their values must be inverted,
/// as Adobe writes them. Values of 16 bits are rounded to 8 bits. An alpha channel, a transparent colour, gamma and
/// colour profiles are ignored. The pixels equal those of Pillow's convert("RGB"), except in files of 16 bits (grey,
/// RGB, RGBA): Pillow truncates their values instead of rounding.
///
/// Throws DataError for a JPEG with damaged coded data, even if libjpeg-turbo could decode the undamaged part. Bytes
/// between the markers of a JPEG, and bytes after its end, are not checked.
void decode(std::span<const std::uint8_t> file, const std::string& name, const Header& header, int shrink,
            Picture& out);

}  // namespace lockstep::nn::images
