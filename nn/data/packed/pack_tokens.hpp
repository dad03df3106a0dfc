#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include <lockstep/nn/data/packed/packed_file.hpp>
#include <lockstep/nn/data/packed/packed_tokens.hpp>
#include <lockstep/nn/data/text/text_files.hpp>

/// Packs text or tokens for the program train_text into one file (packed_tokens.hpp).
namespace lockstep::nn {

struct TokenPackOptions {
  std::string source;  ///< tokens:DIR, a folder for find_token_files(), or text:PATH, a path for read_text()
  std::string out;     ///< path of the file to write, outside of the source
  std::optional<std::int64_t> vocabulary{};  ///< all ids must be below this number; nullopt: below 2^31 - 1
  bool overwrite = false;
};
/// Returns true if `source` begins with tokens: or text:.
[[nodiscard]] bool is_token_source(const std::string& source);

struct TokenPackSummary {
  std::int64_t vocabulary = 0;  ///< largest id + 1
  int width = 0;                ///< bytes of an id: 1, 2 or 4, the smallest that can hold the largest id
  std::uint64_t bytes = 0;      ///< size of the file
};

/// Text or tokens that will be packed. The constructor finds the files and checks the options. If the source is a text,
/// the constructor also reads the text into memory.
class TokenPack {
 public:
  /// Throws UsageError if an option is out of range, if the output lies in the source or exists while `overwrite` is
  /// false, and if a vocabulary is given for a text. Throws DataError for a text of fewer than ten bytes, because the
  /// last tenth, for validation, would be empty. Also throws the errors of find_token_files(), TokenFile and
  /// read_text().
  explicit TokenPack(TokenPackOptions options);

  [[nodiscard]] const TokenPackOptions& options() const { return options_; }
  [[nodiscard]] PackedIds ids() const { return ids_; }
  [[nodiscard]] std::int64_t files() const { return files_; }
  [[nodiscard]] std::int64_t train_tokens() const { return train_tokens_; }  ///< training tokens; for a text, bytes
  [[nodiscard]] std::int64_t validation_tokens() const { return validation_tokens_; }

  /// Reads tokens twice: first to find the largest id, then to write them in the order of the files. Equal sources give
  /// equal bytes. The complete file appears at the end; after an error no new file appears. Calls `report` in the
  /// calling thread after each 2^16 ids. Throws DataError, with the file and the id's index, if an id is not below the
  /// vocabulary, or if the second read finds an id above the largest id of the first read.
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
