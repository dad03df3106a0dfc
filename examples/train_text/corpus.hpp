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

inline constexpr std::int64_t kBytes = 256;  ///< the vocabulary when a token is a byte

/// A text, cut in two: the last tenth is for validation.
struct Corpus {
  std::string source;  ///< for people: where it came from
  lockstep::nn::TextFiles text;
};

/// A file or a folder, as of nn::read_text(). An empty path: the documents (*.md) of the sources that this program was
/// built from.
[[nodiscard]] Corpus read_corpus(const std::string& path);

/// Windows of a text as samples: tokens (length) and labels (length), both i32. Window i begins at byte i * length, and
/// the label of a byte is the byte behind it. Windows do not overlap, so that an epoch reads each byte once; what is
/// left at the end of the text is in no window.
class TextWindows final : public lockstep::nn::Dataset {
 public:
  /// DataError when the text has not enough bytes for one window.
  TextWindows(const std::string& name, std::string text, std::int64_t length);
  /// Of a text that `owner` keeps.
  TextWindows(const std::string& name, std::shared_ptr<const void> owner, std::string_view text, std::int64_t length);

  void read_sample(std::int64_t index, std::span<const std::span<std::byte>> out) const override;
  [[nodiscard]] std::uint64_t fingerprint() const override { return fingerprint_; }
  [[nodiscard]] std::size_t bytes() const { return text_.size(); }  ///< of the text

 private:
  TextWindows(const std::string& name, const std::shared_ptr<const std::string>& text, std::int64_t length)
      : TextWindows(name, text, *text, length) {}

  std::shared_ptr<const void> owner_;
  std::string_view text_;
  std::int64_t length_;
  std::uint64_t fingerprint_;
};

/// What a program of this kind trains on.
struct TextData {
  std::shared_ptr<const lockstep::nn::Dataset> train;
  std::shared_ptr<const lockstep::nn::Dataset> validation;
  std::int64_t vocabulary = kBytes;
  std::string unit = "byte";  ///< what a token is called
  std::string about{};        ///< for people, one line
  [[nodiscard]] bool bytes() const { return unit == "byte"; }
};
/// `data`: a path as of read_corpus(); or tokens:DIR, a folder as of nn::find_token_files() with ids below
/// `vocabulary`; or packed:FILE, one of these in a file of lockstep-pack, with the same windows and fingerprints.
/// Errors as of these and of the windows.
[[nodiscard]] TextData open_text(const std::string& data, std::int64_t length, std::int64_t vocabulary);

/// What it costs to say a token of `validation` by the histogram of the tokens of `train` alone, in bits. One is added
/// to each count, so that no token is impossible. A model that has learned anything needs less. Of long texts the first
/// 2^24 tokens count.
[[nodiscard]] double histogram_bits(const lockstep::nn::Dataset& train, const lockstep::nn::Dataset& validation,
                                    std::int64_t vocabulary);

/// A loss, which is in units of e, in bits.
[[nodiscard]] double bits_of(double loss);

}  // namespace train_text
