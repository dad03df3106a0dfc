#pragma once

#include <cstdint>
#include <span>
#include <string>

#include <lockstep/nn/data/images/decode.hpp>
#include <lockstep/nn/data/packed/packed_file.hpp>

namespace lockstep::nn::detail {

/// The header of a stored JPEG or PNG file, whose bytes read() gave. `text`: text_of() it. DataError when the picture
/// has another size than the index says. UnsupportedError in a build without the libraries.
[[nodiscard]] images::Header packed_header(const PackedSample& sample, std::span<const std::uint8_t> bytes,
                                           const std::string& text);

}  // namespace lockstep::nn::detail
