#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <lockstep/nn/data/dataset.hpp>
#include <lockstep/nn/data/open_data.hpp>

namespace lockstep::nn::detail {

/// Functions that open_data() calls, one for each kind of source. Only open_pictures() and open_packed() set
/// DataSplit::statistics.
[[nodiscard]] DataSplit open_cifar10(const std::string& folder);
[[nodiscard]] DataSplit open_idx(const std::string& folder);
[[nodiscard]] DataSplit open_pictures(const std::string& spec, const FolderOptions& options, std::uint64_t seed);
[[nodiscard]] DataSplit open_packed(const std::string& file, const FolderOptions& options, std::uint64_t seed);
[[nodiscard]] DataSplit open_synthetic(const SyntheticOptions& options, std::uint64_t seed);

/// Images and labels in memory, stored with 1 or 3 channels.
class StoredImages final : public ImageDataset {
 public:
  /// `pixels` must have the shape (size, H, W, channels), and `labels` the shape (size). The caller must have checked
  /// that all labels are in [0, classes).
  StoredImages(DatasetInfo info, int channels, std::vector<std::uint8_t> pixels, std::vector<std::uint8_t> labels);

  [[nodiscard]] std::int32_t label(std::int64_t index) const override;
  void read(std::int64_t index, std::span<std::uint8_t> image) const override;
  [[nodiscard]] std::uint64_t fingerprint() const override { return fingerprint_; }

 private:
  int channels_;
  std::vector<std::uint8_t> pixels_;
  std::vector<std::uint8_t> labels_;
  std::uint64_t fingerprint_;
};

/// 64-bit hash for fingerprints. The order of the added data matters. The hash is not safe against an adversary.
class Hash {
 public:
  void add(std::uint64_t word);
  void add(std::span<const std::uint8_t> bytes);  ///< adds length and content of `bytes`
  [[nodiscard]] std::uint64_t value() const { return state_; }

 private:
  std::uint64_t state_ = 0x6c6f636b73746570ULL;
};

}  // namespace lockstep::nn::detail
