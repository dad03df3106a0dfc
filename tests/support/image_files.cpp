#include "tests/support/image_files.hpp"

#include <cstdio>
#include <cstdlib>
#include <stdexcept>

#include <jpeglib.h>
#include <png.h>

namespace lockstep::testing {

Pixels pixels(std::int64_t width, std::int64_t height, int channels,
              const std::function<int(std::int64_t, std::int64_t, int)>& value) {
  Pixels made{width, height, channels};
  for (std::int64_t y = 0; y < height; ++y) {
    for (std::int64_t x = 0; x < width; ++x) {
      for (int c = 0; c < channels; ++c) {
        made.values.push_back(static_cast<std::uint8_t>(value(y, x, c)));
      }
    }
  }
  return made;
}

std::string jpeg(const Pixels& pixels, const JpegOptions& options) {
  jpeg_compress_struct info;
  jpeg_error_mgr errors;
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* memory = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &memory, &size);
  info.image_width = static_cast<unsigned>(pixels.width);
  info.image_height = static_cast<unsigned>(pixels.height);
  info.input_components = pixels.channels;
  info.in_color_space = pixels.channels == 1 ? JCS_GRAYSCALE : (pixels.channels == 3 ? JCS_RGB : JCS_CMYK);
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, options.quality, TRUE);
  if (!options.half_colours) {
    info.comp_info[0].h_samp_factor = 1;
    info.comp_info[0].v_samp_factor = options.rows_of_luma;
  }
  info.arith_code = options.arithmetic ? TRUE : FALSE;
  if (options.progressive) {
    jpeg_simple_progression(&info);
  }
  const jpeg_scan_info scans[] = {{1, {0}, 0, 63, 0, 0}, {1, {1}, 0, 63, 0, 0}, {1, {2}, 0, 63, 0, 0}};
  if (options.scan_a_channel) {
    info.scan_info = scans;
    info.num_scans = 3;
  }
  jpeg_start_compress(&info, TRUE);
  if (!options.exif.empty()) {
    const std::string marker = std::string("Exif\0\0", 6) + options.exif;
    jpeg_write_marker(&info, JPEG_APP0 + 1, reinterpret_cast<const JOCTET*>(marker.data()),
                      static_cast<unsigned>(marker.size()));
  }
  const auto row = static_cast<std::size_t>(pixels.width * pixels.channels);
  while (info.next_scanline < info.image_height) {
    auto* line = const_cast<std::uint8_t*>(pixels.values.data() + info.next_scanline * row);
    jpeg_write_scanlines(&info, &line, 1);
  }
  jpeg_finish_compress(&info);
  std::string bytes(reinterpret_cast<const char*>(memory), size);
  jpeg_destroy_compress(&info);
  std::free(memory);
  return bytes;
}

std::string png(const Pixels& pixels, const PngOptions& options) {
  std::string bytes;
  png_structp png = png_create_write_struct(
      PNG_LIBPNG_VER_STRING, nullptr, [](png_structp, png_const_charp text) { throw std::runtime_error(text); },
      nullptr);
  png_infop info = png_create_info_struct(png);
  png_set_write_fn(
      png, &bytes,
      [](png_structp to, png_bytep data, std::size_t size) {
        static_cast<std::string*>(png_get_io_ptr(to))->append(reinterpret_cast<const char*>(data), size);
      },
      nullptr);
  const int kinds[] = {PNG_COLOR_TYPE_GRAY, PNG_COLOR_TYPE_GRAY_ALPHA, PNG_COLOR_TYPE_RGB, PNG_COLOR_TYPE_RGB_ALPHA};
  png_set_IHDR(png, info, static_cast<unsigned>(pixels.width), static_cast<unsigned>(pixels.height), options.bits,
               options.palette.empty() ? kinds[pixels.channels - 1] : PNG_COLOR_TYPE_PALETTE,
               options.interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
               PNG_FILTER_TYPE_DEFAULT);
  std::vector<png_color> colours;
  for (std::size_t i = 0; i < options.palette.size(); i += 3) {
    colours.push_back({options.palette[i], options.palette[i + 1], options.palette[i + 2]});
  }
  std::vector<png_byte> clear{0};  // the first colour is transparent
  if (!colours.empty()) {
    png_set_PLTE(png, info, colours.data(), static_cast<int>(colours.size()));
    png_set_tRNS(png, info, clear.data(), 1, nullptr);
  }
  std::string exif = options.exif;
  if (!exif.empty()) {
    png_set_eXIf_1(png, info, static_cast<unsigned>(exif.size()), reinterpret_cast<png_bytep>(exif.data()));
  }
  png_write_info(png, info);
  png_set_packing(png);
  const auto row = static_cast<std::size_t>(pixels.width * pixels.channels) * (options.bits == 16 ? 2 : 1);
  std::vector<png_bytep> rows;
  for (std::size_t y = 0; y < static_cast<std::size_t>(pixels.height); ++y) {
    rows.push_back(const_cast<png_bytep>(pixels.values.data() + y * row));
  }
  png_write_image(png, rows.data());
  png_write_end(png, info);
  png_destroy_write_struct(&png, &info);
  return bytes;
}

std::string exif(int orientation, bool big_endian) {
  const auto number = [&](unsigned value, std::size_t bytes) {
    std::string text;
    for (std::size_t i = 0; i < bytes; ++i) {
      text += static_cast<char>(value >> 8 * (big_endian ? bytes - 1 - i : i) & 0xFF);
    }
    return text;
  };
  // TIFF data in this order: byte order, offset of the entries, number of entries, one entry (tag, type, count, value),
  // and no further entries.
  return (big_endian ? "MM" : "II") + number(42, 2) + number(8, 4) + number(1, 2) + number(0x0112, 2) + number(3, 2) +
         number(1, 4) + number(static_cast<unsigned>(orientation), 2) + number(0, 2) + number(0, 4);
}

}  // namespace lockstep::testing
