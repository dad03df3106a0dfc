#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <lockstep/nn/data/packed/packed_file.hpp>
#include <lockstep/nn/data/packed/packed_tokens.hpp>

namespace lockstep::nn {

/// What check_packed() found.
struct PackedCheck {
  std::int64_t damaged = 0;          ///< samples; of text and tokens blocks
  std::vector<std::string> texts{};  ///< of the first of them: file, sample, what was found and expected
  bool decoded = false;              ///< the samples are JPEG and PNG files, and all that are right were decoded
};

/// Reads a packed file from end to end. PackedFile has checked the header, the index and the end of the file when it
/// opened it; this computes the checksum of every sample, and decodes every stored JPEG and PNG file, which has to be
/// whole and of the size that the index says. A build without the libraries only compares checksums. A damaged sample
/// is counted, and the first `most` are named, in the order of the file for any number of threads. `threads` work
/// beside the caller, in whose thread `report` is called after every few samples. UsageError for a number of threads
/// that is none; DataError as of PackedFile when it cannot be read any more.
[[nodiscard]] PackedCheck check_packed(const PackedFile& file, int threads, std::size_t most,
                                       const std::function<void(const PackProgress&)>& report);
/// The same of text and tokens: the checksum of every block of ids. DataError also when the index says of a part
/// another largest id than it has.
[[nodiscard]] PackedCheck check_packed(const PackedTokens& file, int threads, std::size_t most,
                                       const std::function<void(const PackProgress&)>& report);

}  // namespace lockstep::nn
