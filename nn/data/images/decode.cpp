#include <lockstep/nn/data/images/decode.hpp>

#include <algorithm>
#include <array>
#include <cstddef>

#include <lockstep/nn/data/images/formats.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::nn::images {
namespace {

constexpr std::array<std::uint8_t, 3> kJpeg{0xFF, 0xD8, 0xFF};
constexpr std::array<std::uint8_t, 8> kPng{0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};

template <std::size_t N>
bool begins_with(std::span<const std::uint8_t> file, const std::array<std::uint8_t, N>& signature) {
  return file.size() >= N && std::equal(signature.begin(), signature.end(), file.begin());
}

}  // namespace

bool available() {
  return true;
}

Header read_header(std::span<const std::uint8_t> file, const std::string& name) {
  if (begins_with(file, kJpeg)) {
    return jpeg_header(file, name);
  }
  require<DataError>(begins_with(file, kPng), name, ": is no JPEG or PNG file, by its first bytes",
                     file.empty() ? ": it is empty" : "");
  return png_header(file, name);
}

void decode(std::span<const std::uint8_t> file, const std::string& name, const Header& header, int shrink,
            Picture& out) {
  require<UsageError>(shrink == 1 || shrink == 2 || shrink == 4 || shrink == 8, name, ": shrink is ", shrink,
                      ", expected 1, 2, 4 or 8");
  if (header.format == Format::jpeg) {
    decode_jpeg(file, name, shrink, out);
  } else {
    decode_png(file, name, out);
  }
}

void require_size(const std::string& name, std::uint64_t width, std::uint64_t height) {
  constexpr auto kMost = static_cast<std::uint64_t>(kMaxPixels);
  require<DataError>(width > 0 && height > 0 && width <= kMost / height, name, ": ", width, " x ", height,
                     " pixels, expected 1 to ", kMaxPixels);
}

int exif_orientation(std::span<const std::uint8_t> tiff) {
  constexpr std::uint32_t kOrientation = 0x0112;
  constexpr std::uint32_t kShort = 3;
  constexpr std::size_t kEntry = 12;  // bytes of an entry of the EXIF data: tag, type, count and value
  const bool little = tiff.size() >= 2 && tiff[0] == 'I' && tiff[1] == 'I';
  // Reads a number of `bytes` bytes that begins at offset `at`. Bytes after the end of the data count as 0.
  const auto number = [&](std::size_t at, std::size_t bytes) {
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < bytes; ++i) {
      const std::size_t place = at + (little ? bytes - 1 - i : i);
      value = value << 8 | (place < tiff.size() ? tiff[place] : 0U);
    }
    return value;
  };
  if (!little && !(tiff.size() >= 2 && tiff[0] == 'M' && tiff[1] == 'M')) {
    return 1;
  }
  const std::size_t folder = number(4, 4);
  const std::size_t entries = folder < tiff.size() ? number(folder, 2) : 0;
  for (std::size_t i = 0; i < entries; ++i) {
    const std::size_t entry = folder + 2 + i * kEntry;
    if (number(entry, 2) == kOrientation && number(entry + 2, 2) == kShort) {
      const std::uint32_t value = number(entry + 8, 2);
      return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
    }
  }
  return 1;
}

}  // namespace lockstep::nn::images
