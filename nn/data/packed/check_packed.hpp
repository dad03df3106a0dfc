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
  std::int64_t damaged = 0;          ///< number of damaged samples, or of damaged blocks of ids
  std::vector<std::string> texts{};  ///< errors of the first damaged samples or blocks, one line each
  bool decoded = false;              ///< true: samples are JPEG and PNG files, and all undamaged ones were decoded
};

/// Reads all samples of a packed file and compares the checksum of every sample. The constructor of PackedFile has
/// already checked header, index and footer of the file. Also decodes every stored JPEG and PNG file and compares its
/// size with the index; a build without the JPEG and PNG libraries compares only checksums. Counts the damaged samples,
/// and returns the error texts of the first `most` damaged samples in the order of the file.
///
/// `threads` threads read and decode. The caller's thread calls `report` after every few samples. Throws UsageError
/// unless `threads` is from 1 to 1024, and the DataError of PackedFile if the file can no longer be read.
[[nodiscard]] PackedCheck check_packed(const PackedFile& file, int threads, std::size_t most,
                                       const std::function<void(const PackProgress&)>& report);
/// Checks a packed file of text or tokens in blocks of ids: compares the checksum of every block. In all other
/// respects, this function is like check_packed() for a PackedFile. Also throws DataError if the largest id of an
/// undamaged part, or the index of its first occurrence, differs from what the index of the file states.
[[nodiscard]] PackedCheck check_packed(const PackedTokens& file, int threads, std::size_t most,
                                       const std::function<void(const PackProgress&)>& report);

}  // namespace lockstep::nn
