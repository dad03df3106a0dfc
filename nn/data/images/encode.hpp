#pragma once

#include <string>

#include <lockstep/nn/data/images/decode.hpp>

namespace lockstep::nn::images {

/// The bytes of a PNG file of the picture: 8 bits, RGB. UnsupportedError in a build without libpng (available()).
[[nodiscard]] std::string encode_png(const Picture& picture);

}  // namespace lockstep::nn::images
