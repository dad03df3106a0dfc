// Replaces the decoders in a build without libjpeg-turbo and libpng; decoding then throws UnsupportedError.

#include <lockstep/nn/data/images/decode.hpp>
#include <lockstep/nn/data/images/encode.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::nn::images {
namespace {

[[noreturn]] void refuse(const std::string& name) {
  throw UnsupportedError(name + ": this build has no libjpeg-turbo and libpng, expected one with -DLOCKSTEP_IMAGES=ON");
}

}  // namespace

bool available() {
  return false;
}

Header read_header(std::span<const std::uint8_t> /*file*/, const std::string& name) {
  refuse(name);
}

bool plain_jpeg(std::span<const std::uint8_t> /*file*/, const std::string& name) {
  refuse(name);
}

void decode(std::span<const std::uint8_t> /*file*/, const std::string& name, const Header& /*header*/, int /*shrink*/,
            Picture& /*out*/) {
  refuse(name);
}

std::string encode_png(const Picture& /*picture*/) {
  refuse("a PNG file");
}

}  // namespace lockstep::nn::images
