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
  std::vector<std::string> texts{};  ///< errors of the first damaged samples or blocks: place, found and expected value
  bool decoded = false;              ///< true: samples are JPEG and PNG files, and all undamaged ones were decoded
};

/// Reads all samples of a packed file; the constructor of PackedFile has checked begin, index and end. Computes the
/// checksum of every sample. Also decodes every stored JPEG and PNG file, which has to be whole and of the size in the
/// index; a build without the libraries only compares checksums. Counts the damaged samples. Returns the texts of the
/// first `most` of them, in the order of the file for any number of threads.
///
/// `threads` threads read and decode. The caller's thread calls `report` after every few samples. Throws UsageError
/// unless there are 1 to 1024 threads, and the DataError of PackedFile if the file can no longer be read.
[[nodiscard]] PackedCheck check_packed(const PackedFile& file, int threads, std::size_t most,
                                       const std::function<void(const PackProgress&)>& report);
/// Checks a packed file of text or tokens in the same way: computes the checksum of every block of ids. Also throws
/// DataError if the index states another largest id of an undamaged part, or another place of that id.
[[nodiscard]] PackedCheck check_packed(const PackedTokens& file, int threads, std::size_t most,
                                       const std::function<void(const PackProgress&)>& report);

}  // namespace lockstep::nn
