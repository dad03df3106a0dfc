// Decodes and encodes PNG with libpng. libpng reports an error by calling a function that must not return. In this
// file, that function jumps back into guarded() with longjmp, which runs no destructors. So a body that guarded() runs
// must not create an object with a destructor.

#include <csetjmp>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <utility>

#include <png.h>

#include <lockstep/nn/data/images/encode.hpp>
#include <lockstep/nn/data/images/formats.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::nn::images {
namespace {

struct Source {
  std::jmp_buf back;
  char text[200];
  std::span<const std::uint8_t> rest;
};

extern "C" {
[[noreturn]] static void lockstep_png_error(png_structp png, png_const_charp text) {
  auto& source = *static_cast<Source*>(png_get_error_ptr(png));
  std::snprintf(source.text, sizeof source.text, "%s", text);
  std::longjmp(source.back, 1);
}

static void lockstep_png_warning(png_structp /*png*/, png_const_charp /*text*/) {}

static void lockstep_png_read(png_structp png, png_bytep out, std::size_t count) {
  auto& source = *static_cast<Source*>(png_get_io_ptr(png));
  if (count > source.rest.size()) {
    png_error(png, "the file ends too early");
  }
  std::memcpy(out, source.rest.data(), count);
  source.rest = source.rest.subspan(count);
}
}

/// A libpng reader. The constructor reads everything in the file that comes before the pixels.
class Reader {
 public:
  Reader(std::span<const std::uint8_t> file, const std::string& name) : name_(name) {
    source_.rest = file;
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, &source_, lockstep_png_error, lockstep_png_warning);
    info_ = png_ != nullptr ? png_create_info_struct(png_) : nullptr;
    try {
      require<OutOfMemory>(info_ != nullptr, name_, ": libpng cannot be set up, expected free memory for it");
      guarded([&] {
        png_set_user_limits(png_, PNG_UINT_31_MAX,
                            PNG_UINT_31_MAX);  // no limit here, because require_size() has a better error text
        png_set_read_fn(png_, &source_, lockstep_png_read);
        png_read_info(png_, info_);
      });
      require_size(name_, width(), height());
      // Deflate expands one byte to at most 1032 bytes (zlib's technical notes).
      const std::uint64_t claimed = std::uint64_t{height()} * png_get_rowbytes(png_, info_);
      require<DataError>(claimed <= file.size() * 1032, name_, ": ", width(), " x ", height(), " pixels in a PNG of ",
                         file.size(), " bytes, expected at most 1032 bytes of pixels a byte of the file");
    } catch (...) {
      png_destroy_read_struct(&png_, &info_, nullptr);
      throw;
    }
  }
  ~Reader() { png_destroy_read_struct(&png_, &info_, nullptr); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  /// Calls body(), which calls libpng. An error of libpng becomes a DataError.
  template <class Body>
  void guarded(Body&& body) {
    if (setjmp(source_.back) == 0) {
      std::forward<Body>(body)();
      return;
    }
    throw DataError(concat(name_, ": damaged or unknown PNG data: ", source_.text));
  }

  [[nodiscard]] png_structp png() const { return png_; }
  [[nodiscard]] png_infop info() const { return info_; }
  [[nodiscard]] png_uint_32 width() const { return png_get_image_width(png_, info_); }
  [[nodiscard]] png_uint_32 height() const { return png_get_image_height(png_, info_); }

  [[nodiscard]] int orientation() {
    int found = 1;
#ifdef PNG_eXIf_SUPPORTED
    guarded([&] {
      png_uint_32 size = 0;
      png_bytep exif = nullptr;
      if (png_get_eXIf_1(png_, info_, &size, &exif) != 0) {
        found = exif_orientation({exif, size});
      }
    });
#endif
    return found;
  }

 private:
  const std::string& name_;
  Source source_{};
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
};

}  // namespace

Header png_header(std::span<const std::uint8_t> file, const std::string& name) {
  Reader reader(file, name);
  return {Format::png, reader.width(), reader.height(), reader.orientation()};
}

void decode_png(std::span<const std::uint8_t> file, const std::string& name, Picture& out) {
  Reader reader(file, name);
  png_structp png = reader.png();
  int passes = 0;
  reader.guarded([&] {
    png_set_palette_to_rgb(png);
    png_set_expand_gray_1_2_4_to_8(png);
    png_set_scale_16(png);
    png_set_gray_to_rgb(png);
    png_set_strip_alpha(png);
    passes = png_set_interlace_handling(png);
    png_read_update_info(png, reader.info());
  });
  out.width = reader.width();
  out.height = reader.height();
  out.shrink = 1;
  const std::size_t row = static_cast<std::size_t>(out.width) * 3;
  require<DataError>(png_get_rowbytes(png, reader.info()) == row, name, ": rows of ",
                     png_get_rowbytes(png, reader.info()), " bytes, expected ", row);
  out.pixels.resize(static_cast<std::size_t>(out.height) * row);
  reader.guarded([&] {
    for (int pass = 0; pass < passes; ++pass) {
      for (std::size_t y = 0; y < static_cast<std::size_t>(out.height); ++y) {
        png_read_row(png, out.pixels.data() + y * row, nullptr);
      }
    }
    png_read_end(png, nullptr);
  });
}

std::string encode_png(const Picture& picture) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(picture.width);
  image.height = static_cast<png_uint_32>(picture.height);
  image.format = PNG_FORMAT_RGB;
  std::string file;
  png_alloc_size_t bytes = PNG_IMAGE_PNG_SIZE_MAX(image);
  file.resize(bytes);
  const int written = png_image_write_to_memory(&image, file.data(), &bytes, 0, picture.pixels.data(), 0, nullptr);
  require<UsageError>(written != 0, "a PNG of ", picture.width, " x ", picture.height,
                      " pixels cannot be made, expected a picture that libpng takes: libpng says '", image.message,
                      "'");
  file.resize(bytes);
  return file;
}

}  // namespace lockstep::nn::images
