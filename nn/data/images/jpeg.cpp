// Decodes JPEG with libjpeg-turbo. libjpeg reports an error by calling a function that must not return. In this file,
// that function jumps back into guarded() with longjmp, which runs no destructors. So a body that guarded() runs must
// not create an object with a destructor.

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include <jpeglib.h>
// jerror.h comes after jpeglib.h, because its macros use the declarations of jpeglib.h.
#include <jerror.h>

#include <lockstep/nn/data/images/formats.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::nn::images {
namespace {

// A small damaged or hostile progressive file may have thousands of scans, each of which takes a pass over a large
// picture. Encoders write about ten scans.
constexpr int kMaxScans = 100;

struct Failure {
  jpeg_error_mgr manager;  // must be the first member: failure_of() casts a pointer to `manager` into a Failure*
  std::jmp_buf back;
  char text[JMSG_LENGTH_MAX];
};

Failure& failure_of(j_common_ptr info) {
  return *reinterpret_cast<Failure*>(info->err);
}

extern "C" {
[[noreturn]] static void lockstep_jpeg_error(j_common_ptr info) {
  Failure& failure = failure_of(info);
  info->err->format_message(info, failure.text);
  std::longjmp(failure.back, 1);
}

// libjpeg gives warnings the level -1. After a warning about damaged data, libjpeg goes on with grey pixels. So
// warnings are treated as errors, except three harmless kinds, such as extra bytes between markers.
static void lockstep_jpeg_message(j_common_ptr info, int level) {
  const int code = info->err->msg_code;
  if (level < 0 && code != JWRN_EXTRANEOUS_DATA && code != JWRN_ADOBE_XFORM && code != JWRN_JFIF_MAJOR) {
    lockstep_jpeg_error(info);
  }
}

static void lockstep_jpeg_progress(j_common_ptr info) {
  if (reinterpret_cast<j_decompress_ptr>(info)->input_scan_number > kMaxScans) {
    Failure& failure = failure_of(info);
    std::snprintf(failure.text, sizeof failure.text, "more than %d scans", kMaxScans);
    std::longjmp(failure.back, 1);
  }
}
}

/// A libjpeg decompressor. The constructor reads the header of the JPEG file.
class Decompressor {
 public:
  Decompressor(std::span<const std::uint8_t> file, const std::string& name) : name_(name) {
    std::memset(&info_, 0, sizeof info_);
    std::memset(&failure_, 0, sizeof failure_);
    info_.err = jpeg_std_error(&failure_.manager);
    failure_.manager.error_exit = lockstep_jpeg_error;
    failure_.manager.emit_message = lockstep_jpeg_message;
    progress_.progress_monitor = lockstep_jpeg_progress;
    try {
      guarded([&] {
        jpeg_create_decompress(&info_);
        info_.progress = &progress_;
        jpeg_mem_src(&info_, file.data(), static_cast<unsigned long>(file.size()));
        jpeg_save_markers(&info_, JPEG_APP0 + 1, 0xFFFF);
        jpeg_read_header(&info_, TRUE);
      });
      require_size(name_, info_.image_width, info_.image_height);
      // A block of 8 x 8 pixels takes at least one bit of Huffman code, so a byte holds at most 512 pixels.
      const std::uint64_t claimed = std::uint64_t{info_.image_width} * info_.image_height;
      require<DataError>(claimed <= file.size() * 512, name_, ": ", info_.image_width, " x ", info_.image_height,
                         " pixels in a JPEG of ", file.size(), " bytes, expected at most 512 pixels a byte");
      require<DataError>(info_.data_precision == 8, name_, ": a JPEG of ", info_.data_precision,
                         " bits a colour, expected 8");
      require<DataError>(info_.jpeg_color_space != JCS_UNKNOWN, name_, ": a JPEG of ", info_.num_components,
                         " channels, expected grey, RGB, YCbCr, CMYK or YCCK");
    } catch (...) {
      jpeg_destroy_decompress(&info_);
      throw;
    }
  }
  ~Decompressor() { jpeg_destroy_decompress(&info_); }
  Decompressor(const Decompressor&) = delete;
  Decompressor& operator=(const Decompressor&) = delete;

  /// Calls body(), which calls libjpeg. An error of libjpeg becomes a DataError.
  template <class Body>
  void guarded(Body&& body) {
    if (setjmp(failure_.back) == 0) {
      std::forward<Body>(body)();
      return;
    }
    throw DataError(concat(name_, ": damaged or unknown JPEG data: ", failure_.text));
  }

  [[nodiscard]] jpeg_decompress_struct& info() { return info_; }

  [[nodiscard]] int orientation() const {
    constexpr char kExif[] = "Exif\0";  // ends with two zeros: one written here, and the one that ends every literal
    for (const jpeg_marker_struct* marker = info_.marker_list; marker != nullptr; marker = marker->next) {
      if (marker->marker == JPEG_APP0 + 1 && marker->data_length >= sizeof kExif &&
          std::memcmp(marker->data, kExif, sizeof kExif) == 0) {
        return exif_orientation({marker->data + sizeof kExif, marker->data_length - sizeof kExif});
      }
    }
    return 1;
  }

 private:
  const std::string& name_;
  Failure failure_;
  jpeg_progress_mgr progress_{};
  jpeg_decompress_struct info_;
};

/// Converts `pixels` pixels of inverted CMYK (four channels) to RGB.
void rgb_of_cmyk(const std::uint8_t* from, std::uint8_t* to, std::size_t pixels) {
  for (std::size_t p = 0; p < pixels; ++p) {
    const unsigned black = from[4 * p + 3];
    for (std::size_t c = 0; c < 3; ++c) {
      to[3 * p + c] = static_cast<std::uint8_t>((from[4 * p + c] * black + 127) / 255);
    }
  }
}

}  // namespace

Header jpeg_header(std::span<const std::uint8_t> file, const std::string& name) {
  Decompressor jpeg(file, name);
  return {Format::jpeg, jpeg.info().image_width, jpeg.info().image_height, jpeg.orientation()};
}

bool plain_jpeg(std::span<const std::uint8_t> file, const std::string& name) {
  Decompressor jpeg(file, name);
  const jpeg_decompress_struct& info = jpeg.info();
  if (info.arith_code || (info.jpeg_color_space != JCS_GRAYSCALE && info.jpeg_color_space != JCS_YCbCr)) {
    return false;
  }
  // Subsamplings that nvJPEG supports, as pairs: the numbers of luma values for each chroma value, horizontally and
  // vertically.
  constexpr std::array<std::pair<int, int>, 6> kKnown{{{1, 1}, {2, 1}, {2, 2}, {1, 2}, {4, 1}, {4, 2}}};
  const std::span channels(info.comp_info, static_cast<std::size_t>(info.num_components));
  const auto one = [](const jpeg_component_info& channel) {
    return channel.h_samp_factor == 1 && channel.v_samp_factor == 1;
  };
  const std::pair luma(channels[0].h_samp_factor, channels[0].v_samp_factor);
  return channels.size() == 1 || (std::all_of(channels.begin() + 1, channels.end(), one) &&
                                  std::find(kKnown.begin(), kKnown.end(), luma) != kKnown.end());
}

void decode_jpeg(std::span<const std::uint8_t> file, const std::string& name, int shrink, Picture& out) {
  Decompressor jpeg(file, name);
  jpeg_decompress_struct& info = jpeg.info();
  const bool cmyk = info.jpeg_color_space == JCS_CMYK || info.jpeg_color_space == JCS_YCCK;
  jpeg.guarded([&] {
    info.scale_num = 1;
    info.scale_denom = static_cast<unsigned>(shrink);
    info.out_color_space = cmyk ? JCS_CMYK : JCS_RGB;
    jpeg_start_decompress(&info);
  });
  out.width = info.output_width;
  out.height = info.output_height;
  out.shrink = shrink;
  const auto width = static_cast<std::size_t>(out.width);
  out.pixels.resize(static_cast<std::size_t>(out.height) * width * 3);
  std::vector<std::uint8_t> line(cmyk ? width * 4 : 0);
  jpeg.guarded([&] {
    while (info.output_scanline < info.output_height) {
      std::uint8_t* row = out.pixels.data() + std::size_t{info.output_scanline} * width * 3;
      JSAMPROW to = cmyk ? line.data() : row;
      jpeg_read_scanlines(&info, &to, 1);
      if (cmyk) {
        rgb_of_cmyk(line.data(), row, width);
      }
    }
    jpeg_finish_decompress(&info);
  });
}

}  // namespace lockstep::nn::images
