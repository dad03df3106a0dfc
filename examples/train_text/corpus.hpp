#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include <lockstep/nn/data/dataset.hpp>
#include <lockstep/nn/data/text/text_files.hpp>

namespace train_text {

inline constexpr std::int64_t kBytes = 256;  ///< size of the vocabulary when a token is a byte

/// A text in two parts: the first nine tenths are for training, the last tenth is for validation.
struct Corpus {
  std::string source;  ///< name of the source, for people
  lockstep::nn::TextFiles text;
};

/// Reads the text of a file or a folder, as nn::read_text() does. If `path` is empty, reads the documents (*.md) of
/// this program's source tree.
[[nodiscard]] Corpus read_corpus(const std::string& path);

/// A data set whose samples are windows of a text. A sample has `length` tokens and `length` labels, all i32. Window i
/// begins at byte i * length; the label of a byte is the next byte of the text. Windows do not overlap, so an epoch
/// reads each byte once. The bytes after the last whole window are in no window.
class TextWindows final : public lockstep::nn::Dataset {
 public:
  /// Throws DataError when the text has not enough bytes for one window.
  TextWindows(const std::string& name, std::string text, std::int64_t length);
  /// Makes windows of a text that `owner` keeps alive.
  TextWindows(const std::string& name, std::shared_ptr<const void> owner, std::string_view text, std::int64_t length);

  void read_sample(std::int64_t index, std::span<const std::span<std::byte>> out) const override;
  [[nodiscard]] std::uint64_t fingerprint() const override { return fingerprint_; }
  [[nodiscard]] std::size_t bytes() const { return text_.size(); }  ///< size of the text

 private:
  TextWindows(const std::string& name, const std::shared_ptr<const std::string>& text, std::int64_t length)
      : TextWindows(name, text, *text, length) {}

  std::shared_ptr<const void> owner_;
  std::string_view text_;
  std::int64_t length_;
  std::uint64_t fingerprint_;
};

/// The data that train_text trains on.
struct TextData {
  std::shared_ptr<const lockstep::nn::Dataset> train;
  std::shared_ptr<const lockstep::nn::Dataset> validation;
  std::int64_t vocabulary = kBytes;
  std::string unit = "byte";  ///< name of a token: "byte" or "token"
  std::string about{};        ///< description for people, one line
  [[nodiscard]] bool bytes() const { return unit == "byte"; }
};
/// Opens `data`, which has one of three forms:
/// - a path for read_corpus();
/// - tokens:DIR, a folder for nn::find_token_files(); all token ids must be below `vocabulary`;
/// - packed:FILE, a file of lockstep-pack with a text or tokens. It gives the same windows and fingerprints as the
///   unpacked data.
/// Throws the errors of these functions and of the classes of windows.
[[nodiscard]] TextData open_text(const std::string& data, std::int64_t length, std::int64_t vocabulary);

/// Returns the mean number of bits per token of `validation` in an entropy code that uses only the frequencies of the
/// tokens in `train`. One is added to each count, so that no token is impossible. A model that has learned anything
/// needs fewer bits. Only the first 2^24 tokens of each set are counted.
[[nodiscard]] double histogram_bits(const lockstep::nn::Dataset& train, const lockstep::nn::Dataset& validation,
                                    std::int64_t vocabulary);

/// Converts a loss from nats (natural logarithm) to bits.
[[nodiscard]] double bits_of(double loss);

}  // namespace train_text
