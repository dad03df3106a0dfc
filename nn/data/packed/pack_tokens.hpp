#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include <lockstep/nn/data/packed/packed_file.hpp>
#include <lockstep/nn/data/packed/packed_tokens.hpp>
#include <lockstep/nn/data/text/text_files.hpp>

/// Packs text or tokens for train_text into one file (packed_tokens.hpp).
namespace lockstep::nn {

struct TokenPackOptions {
  std::string source;  ///< tokens:DIR with a folder for find_token_files(), or text:PATH with a path for read_text()
  std::string out;     ///< path of the file to write, outside of the source
  std::optional<std::int64_t> vocabulary{};  ///< number that all ids must be below; nullopt: 2^31 - 1
  bool overwrite = false;
};
/// True if `source` begins with tokens: or text:.
[[nodiscard]] bool is_token_source(const std::string& source);

struct TokenPackSummary {
  std::int64_t vocabulary = 0;  ///< largest id + 1
  int width = 0;                ///< bytes of an id: 1, 2 or 4, the fewest that hold the largest id
  std::uint64_t bytes = 0;      ///< size of the file
};

/// Text or tokens that will be packed. The constructor finds the files and checks the options; a text is read into
/// memory.
class TokenPack {
 public:
  /// Throws UsageError for options out of range, for an output that lies in the source or exists while `overwrite` is
  /// false, and for a vocabulary given with text. Throws DataError for a text of fewer than ten bytes, because its last
  /// tenth for validation would be empty. Also throws the errors of find_token_files(), TokenFile and read_text().
  explicit TokenPack(TokenPackOptions options);

  [[nodiscard]] const TokenPackOptions& options() const { return options_; }
  [[nodiscard]] PackedIds ids() const { return ids_; }
  [[nodiscard]] std::int64_t files() const { return files_; }
  [[nodiscard]] std::int64_t train_tokens() const { return train_tokens_; }  ///< number of tokens; bytes for text
  [[nodiscard]] std::int64_t validation_tokens() const { return validation_tokens_; }

  /// Reads tokens twice: first to find the largest id, then to write them in the order of the files. Equal sources give
  /// equal bytes. The file appears at the end, durable, or not at all. Calls `report` in this thread after each 2^16
  /// ids. Throws DataError, which names file and place, for an id that is not below the vocabulary, and for an id of
  /// the second read that is above the largest id of the first.
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
