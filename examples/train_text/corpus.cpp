#include "corpus.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numbers>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include <lockstep/nn/data/packed/packed_tokens.hpp>
#include <lockstep/nn/data/token_files.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/fnv1a.hpp>
#include <lockstep/runtime/base/units.hpp>

namespace train_text {

using lockstep::concat;
using lockstep::counted;
using lockstep::DataError;
using lockstep::require;

namespace {

constexpr std::string_view kTokens = "tokens:";
constexpr std::string_view kPacked = "packed:";
constexpr const char* kTrainName = ", the part to train on,";
constexpr const char* kValidationName = ", the last tenth,";

/// Returns how often each token occurs in `windows`. Counts only the first windows, with at most kMostTokens tokens in
/// all.
std::vector<double> counts_of(const lockstep::nn::Dataset& windows, std::int64_t vocabulary) {
  constexpr std::int64_t kMostTokens = std::int64_t{1} << 24;
  const auto length = static_cast<std::size_t>(windows.fields()[0].shape[0]);
  std::vector<double> counts(static_cast<std::size_t>(vocabulary));
  std::vector<std::int32_t> tokens(length);
  std::vector<std::int32_t> labels(length);
  const std::array<std::span<std::byte>, 2> out{std::as_writable_bytes(std::span(tokens)),
                                                std::as_writable_bytes(std::span(labels))};
  const std::int64_t most = std::max<std::int64_t>(1, kMostTokens / static_cast<std::int64_t>(length));
  for (std::int64_t i = 0; i < std::min(windows.size(), most); ++i) {
    windows.read_sample(i, out);
    for (const std::int32_t id : tokens) {
      counts[static_cast<std::size_t>(id)] += 1;
    }
  }
  return counts;
}

std::int64_t windows_of(const std::string& name, std::string_view text, std::int64_t length) {
  const auto bytes = static_cast<std::int64_t>(text.size());
  require<DataError>(bytes > length, name, " has ", bytes, " bytes, expected more than --length ", length);
  return (bytes - 1) / length;  // one less, because the label of a window's last byte is the byte after the window
}

}  // namespace

Corpus read_corpus(const std::string& path) {
  const bool own = path.empty();
  const std::string from = own ? LOCKSTEP_SOURCES : path;
  const std::string shown = (own ? "no --data FILE is given; the documents of lockstep, " : "--data ") + from;
  return {.source = own ? "the documents of lockstep" : path,
          .text = own ? lockstep::nn::read_text(from, shown, {".md"}) : lockstep::nn::read_text(from, shown)};
}

TextWindows::TextWindows(const std::string& name, std::string text, std::int64_t length)
    : TextWindows(name, std::make_shared<const std::string>(std::move(text)), length) {}

TextWindows::TextWindows(const std::string& name, std::shared_ptr<const void> owner, std::string_view text,
                         std::int64_t length)
    : Dataset(name, windows_of(name, text, length),
              {{lockstep::nn::StateField::tokens, lockstep::DType::i32, {length}},
               {lockstep::nn::StateField::labels, lockstep::DType::i32, {length}}}),
      owner_(std::move(owner)),
      text_(text),
      length_(length),
      fingerprint_(
          lockstep::fnv1a(std::as_bytes(std::span(text_)), lockstep::kFnvBegin ^ static_cast<std::uint64_t>(length))) {}

void TextWindows::read_sample(std::int64_t index, std::span<const std::span<std::byte>> out) const {
  const char* window = text_.data() + index * length_;
  for (std::size_t field = 0; field < 2; ++field) {  // field 0: tokens; field 1: labels, which begin one byte later
    for (std::size_t t = 0; t < static_cast<std::size_t>(length_); ++t) {
      const std::int32_t token = static_cast<unsigned char>(window[field + t]);
      std::memcpy(out[field].data() + t * sizeof token, &token, sizeof token);
    }
  }
}

double histogram_bits(const lockstep::nn::Dataset& train, const lockstep::nn::Dataset& validation,
                      std::int64_t vocabulary) {
  const std::vector<double> known = counts_of(train, vocabulary);
  const std::vector<double> said = counts_of(validation, vocabulary);
  const double all = std::accumulate(known.begin(), known.end(), 0.0) + static_cast<double>(vocabulary);
  double bits = 0;
  double tokens = 0;
  for (std::size_t id = 0; id < said.size(); ++id) {
    bits -= said[id] * std::log2((known[id] + 1) / all);
    tokens += said[id];
  }
  return bits / tokens;
}

namespace {

/// Makes TextData from windows of tokens. TextData::about is "DATA: N tokens in 2 files to train on (M windows of 32),
/// ...".
TextData data_of(const std::string& data, const std::shared_ptr<const lockstep::nn::TokenWindows>& train,
                 const std::shared_ptr<const lockstep::nn::TokenWindows>& validation, std::int64_t vocabulary) {
  return {.train = train,
          .validation = validation,
          .vocabulary = vocabulary,
          .unit = "token",
          .about = concat(data, ": ", train->tokens(), " tokens in ", counted(train->files().size(), "file"),
                          " to train on (", train->size(), " windows of ", train->fields()[0].shape[0], "), ",
                          validation->tokens(), " in ", counted(validation->files().size(), "file"),
                          " for validation (", validation->size(), " windows)")};
}

/// Makes TextData from windows of a text. `files` is "2 files, ", or empty if the number of files is not known.
TextData data_of(const std::string& source, const std::string& files, const std::shared_ptr<const TextWindows>& train,
                 const std::shared_ptr<const TextWindows>& validation) {
  return {.train = train,
          .validation = validation,
          .about = concat(source, ": ", files, train->bytes(), " bytes to train on (", train->size(), " windows of ",
                          train->fields()[0].shape[0], "), ", validation->bytes(), " for validation (",
                          validation->size(), " windows)")};
}

TextData open_tokens(const std::string& data, std::int64_t length, std::int64_t vocabulary) {
  const lockstep::nn::TokenFolder files = lockstep::nn::find_token_files(data.substr(kTokens.size()));
  const auto open = [&](const std::vector<std::string>& paths, const char* part) {
    std::vector<lockstep::nn::TokenFile> opened(paths.begin(), paths.end());
    return std::make_shared<lockstep::nn::TokenWindows>(concat(data, ' ', part), std::move(opened), length, vocabulary);
  };
  const auto train = open(files.train, "train");
  return data_of(data, train, open(files.validation, "val"), vocabulary);
}

TextData open_packed(const std::string& data, std::int64_t length, std::int64_t vocabulary) {
  require<lockstep::UsageError>(data.size() > kPacked.size(), "--data is packed:, expected packed:FILE");
  const auto file = std::make_shared<const lockstep::nn::PackedTokens>(data.substr(kPacked.size()));
  if (file->ids() == lockstep::nn::PackedIds::tokens) {
    file->require_below(vocabulary);
    const auto windows = [&](const char* part, bool validation) {
      return std::make_shared<lockstep::nn::TokenWindows>(
          concat(data, ' ', part), lockstep::nn::token_ids_of(file, validation), length, vocabulary);
    };
    const auto train = windows("train", false);
    return data_of(data, train, windows("val", true), vocabulary);
  }
  const auto windows = [&](const char* name, std::size_t part) {
    return std::make_shared<TextWindows>(data + name, file, file->text(part), length);
  };
  const auto train = windows(kTrainName, 0);
  return data_of(data, "", train, windows(kValidationName, 1));
}

}  // namespace

TextData open_text(const std::string& data, std::int64_t length, std::int64_t vocabulary) {
  if (data.starts_with(kTokens)) {
    return open_tokens(data, length, vocabulary);
  }
  if (data.starts_with(kPacked)) {
    return open_packed(data, length, vocabulary);
  }
  for (const std::string_view word : {"text:", "folder:"}) {
    require<lockstep::UsageError>(!data.starts_with(word), "--data is '", data, "', expected a file or folder alone: ",
                                  data.substr(std::min(word.size(), data.size())));
  }
  Corpus corpus = read_corpus(data);
  const auto train = std::make_shared<TextWindows>(corpus.source + kTrainName, std::move(corpus.text.train), length);
  return data_of(
      corpus.source, counted(corpus.text.files, "file") + ", ", train,
      std::make_shared<TextWindows>(corpus.source + kValidationName, std::move(corpus.text.validation), length));
}

double bits_of(double loss) {
  return loss / std::numbers::ln2;
}

}  // namespace train_text
