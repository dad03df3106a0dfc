#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <lockstep/nn/data/packed/packed_file.hpp>
#include <lockstep/nn/data/packed/packed_tokens.hpp>

namespace lockstep::nn {

/// Result of check_packed().
struct PackedCheck {
  std::int64_t damaged = 0;          ///< number of damaged samples, or of damaged blocks of text and tokens
  std::vector<std::string> texts{};  ///< errors of the first damaged ones: file, sample, found and expected value
  bool decoded = false;              ///< samples are JPEG and PNG files, and all undamaged ones were decoded
};

/// Reads a packed file from end to end. The constructor of PackedFile has checked begin, index and end. This function
/// computes the checksum of every sample. It also decodes every stored JPEG and PNG file, which has to be whole and of
/// the size in the index; a build without the libraries only compares checksums. Damaged samples are counted, and the
/// texts of the first `most` are returned, in the order of the file for any number of threads.
///
/// `threads` threads read and decode. `report` is called in the caller's thread after every few samples. Throws
/// UsageError unless there are 1 to 1024 threads, and the DataError of PackedFile when the file can no longer be read.
[[nodiscard]] PackedCheck check_packed(const PackedFile& file, int threads, std::size_t most,
                                       const std::function<void(const PackProgress&)>& report);
/// Checks a packed file of text or tokens in the same way: computes the checksum of every block of ids. Throws
/// DataError also when the largest id of an undamaged part, or its place, is not the one in the index.
[[nodiscard]] PackedCheck check_packed(const PackedTokens& file, int threads, std::size_t most,
                                       const std::function<void(const PackProgress&)>& report);

}  // namespace lockstep::nn
