#pragma once

#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <span>
#include <vector>

#include <jpeglib.h>

/// Decodes JPEG files with plain calls of libjpeg. Tests compare the decoder's results with these pixels.
namespace lockstep::testing {

struct PlainHeader {
  int width = 0;
  int height = 0;
  int channels = 0;
};

namespace detail {

struct JpegFailure {
  jpeg_error_mgr manager;  // must be first, so that libjpeg's pointer to it points to the struct
  std::jmp_buf back;
};

/// Reads the header, then calls body(info). Returns true if libjpeg reported neither an error nor a warning. An error
/// leaves body by longjmp, so no object in body may have a destructor.
template <class Body>
bool with_jpeg(std::span<const std::uint8_t> file, Body body) {
  jpeg_decompress_struct info;
  JpegFailure failure;
  info.err = jpeg_std_error(&failure.manager);
  failure.manager.error_exit = [](j_common_ptr common) {
    std::longjmp(reinterpret_cast<JpegFailure*>(common->err)->back, 1);
  };
  failure.manager.emit_message = [](j_common_ptr common, int level) {
    if (level < 0) {
      std::longjmp(reinterpret_cast<JpegFailure*>(common->err)->back, 1);
    }
  };
  if (setjmp(failure.back) != 0) {
    jpeg_destroy_decompress(&info);
    return false;
  }
  jpeg_create_decompress(&info);
  jpeg_mem_src(&info, file.data(), static_cast<unsigned long>(file.size()));
  jpeg_read_header(&info, TRUE);
  body(info);
  jpeg_destroy_decompress(&info);
  return true;
}

}  // namespace detail

inline std::optional<PlainHeader> read_header(std::span<const std::uint8_t> file) {
  PlainHeader header;
  const bool good = detail::with_jpeg(file, [&](jpeg_decompress_struct& info) {
    header = {static_cast<int>(info.image_width), static_cast<int>(info.image_height), info.num_components};
  });
  return good ? std::optional(header) : std::nullopt;
}

/// Returns the pixels of a file as RGB, of shape (height, width, 3); nothing if the file is damaged.
inline std::optional<std::vector<std::uint8_t>> decode(std::span<const std::uint8_t> file) {
  const std::optional<PlainHeader> header = read_header(file);
  if (!header) {
    return std::nullopt;
  }
  const std::size_t row = static_cast<std::size_t>(header->width) * 3;
  std::vector<std::uint8_t> pixels(static_cast<std::size_t>(header->height) * row);
  const bool good = detail::with_jpeg(file, [&](jpeg_decompress_struct& info) {
    info.out_color_space = JCS_RGB;
    jpeg_start_decompress(&info);
    while (info.output_scanline < info.output_height) {
      JSAMPROW line = pixels.data() + info.output_scanline * row;
      jpeg_read_scanlines(&info, &line, 1);
    }
    jpeg_finish_decompress(&info);
  });
  return good ? std::optional(pixels) : std::nullopt;
}

}  // namespace lockstep::testing
