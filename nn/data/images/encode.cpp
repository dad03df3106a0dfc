#include <lockstep/nn/data/images/encode.hpp>

#include <png.h>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep::nn::images {

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
  require<UsageError>(written != 0, "a PNG of ", picture.width, " x ", picture.height, " pixels: libpng says '",
                      image.message, "'");
  file.resize(bytes);
  return file;
}

}  // namespace lockstep::nn::images
