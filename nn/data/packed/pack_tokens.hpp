#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include <lockstep/nn/data/packed/packed_file.hpp>
#include <lockstep/nn/data/packed/packed_tokens.hpp>
#include <lockstep/nn/data/text/text_files.hpp>

/// What train_text reads, in one file (packed_tokens.hpp).
namespace lockstep::nn {

struct TokenPackOptions {
  std::string source;  ///< tokens:DIR, a folder as of find_token_files(); text:PATH, as of read_text()
  std::string out;     ///< the file to write, outside of the source
  std::optional<std::int64_t> vocabulary{};  ///< ids of tokens are below it
  bool overwrite = false;
};
/// Whether this begins like a source of text or tokens.
[[nodiscard]] bool is_token_source(const std::string& source);

struct TokenPackSummary {
  std::int64_t vocabulary = 0;  ///< largest id + 1
  int width = 0;                ///< bytes of an id: the fewest that hold the largest
  std::uint64_t bytes = 0;      ///< of the file
};

/// Text or tokens that will be packed: the files are found, and the options are right. A text is in memory.
class TokenPack {
 public:
  /// UsageError: options out of range, an output in the folder, or one that exists without `overwrite`; a vocabulary
  /// of text. DataError: as of find_token_files(), TokenFile and read_text(); a text of fewer than ten bytes, which has
  /// no tenth.
  explicit TokenPack(TokenPackOptions options);

  [[nodiscard]] const TokenPackOptions& options() const { return options_; }
  [[nodiscard]] PackedIds ids() const { return ids_; }
  [[nodiscard]] std::int64_t files() const { return files_; }
  [[nodiscard]] std::int64_t train_tokens() const { return train_tokens_; }  ///< of text: bytes
  [[nodiscard]] std::int64_t validation_tokens() const { return validation_tokens_; }

  /// Reads tokens twice, once for the largest id, and writes them in the order in which they are read: equal sources
  /// give equal bytes. The file appears at the end, durable, or not at all. `report` is called in this thread after
  /// each 2^16 ids. DataError that names file and place for an id that is not below the vocabulary, or that has changed
  /// in between.
  [[nodiscard]] TokenPackSummary write(const std::function<void(const PackProgress&)>& report) const;

 private:
  TokenPackOptions options_;
  PackedIds ids_ = PackedIds::tokens;
  std::int64_t files_ = 0;
  std::int64_t train_tokens_ = 0;
  std::int64_t validation_tokens_ = 0;
  TokenFolder folder_;
  TextFiles text_;
};

}  // namespace lockstep::nn
