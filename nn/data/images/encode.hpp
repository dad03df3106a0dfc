#pragma once

#include <string>

#include <lockstep/nn/data/images/decode.hpp>

namespace lockstep::nn::images {

/// Returns the bytes of a PNG file (8 bits, RGB) that shows `picture`. Throws UnsupportedError in a build without
/// libpng (available()).
[[nodiscard]] std::string encode_png(const Picture& picture);

}  // namespace lockstep::nn::images
