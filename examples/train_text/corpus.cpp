#include "corpus.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <numbers>
#include <numeric>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <lockstep/nn/data/token_files.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/files/file.hpp>

namespace train_text {

namespace fs = std::filesystem;
using lockstep::concat;
using lockstep::DataError;
using lockstep::require;

namespace {

constexpr std::string_view kTokens = "tokens:";
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 32;  // of the text: it is held in memory

bool passed_over(const fs::directory_entry& entry) {
  std::error_code ignored;
  return entry.path().filename().string().starts_with('.') ||
         (entry.is_directory(ignored) && fs::exists(entry.path() / "CMakeCache.txt", ignored));
}

/// Files below `folder` with one of these endings, in the order of their paths.
std::vector<std::string> files_below(const std::string& folder, const std::vector<std::string>& endings) {
  std::vector<std::string> files;
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    std::error_code ignored;
    if (passed_over(*entry)) {
      entry.disable_recursion_pending();
    } else if (entry->is_regular_file(ignored) &&
               std::find(endings.begin(), endings.end(), entry->path().extension().string()) != endings.end()) {
      files.push_back(entry->path().string());
    }
  }
  require<DataError>(!error, folder, ": cannot be read: ", error.message());
  std::sort(files.begin(), files.end());
  return files;
}

/// "1 file", "3 files".
std::string counted(std::size_t number, const char* what) {
  return concat(number, ' ', what, number == 1 ? "" : "s");
}

/// Order-dependent (FNV-1a): tells texts apart, not against an adversary.
std::uint64_t hash_of(const std::string& text, std::int64_t length) {
  std::uint64_t hash = 0xcbf29ce484222325ULL ^ static_cast<std::uint64_t>(length);
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  }
  return hash;
}

/// How often each token occurs in the windows of a set.
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

std::int64_t windows_of(const std::string& name, const std::string& text, std::int64_t length) {
  const auto bytes = static_cast<std::int64_t>(text.size());
  require<DataError>(bytes > length, name, " has ", bytes, " bytes, expected more than --length ", length);
  return (bytes - 1) / length;  // the last label is one byte beyond its window
}

}  // namespace

Corpus read_corpus(const std::string& path) {
  const bool own = path.empty();
  const std::string from = own ? LOCKSTEP_SOURCES : path;
  std::error_code ignored;
  require<DataError>(fs::exists(from, ignored), "--data ", from, ": there is no such file or folder");
  Corpus corpus;
  corpus.source = own ? "the documents of lockstep" : path;
  std::vector<std::string> files{from};
  if (fs::is_directory(from, ignored)) {
    files = files_below(
        from, own ? std::vector<std::string>{".md"} : std::vector<std::string>{".md", ".txt", ".hpp", ".cpp"});
    require<DataError>(!files.empty(), "--data ", from, ": the folder holds no file *.md",
                       own ? "" : ", *.txt, *.hpp or *.cpp");
  }
  for (const std::string& file : files) {
    corpus.train += lockstep::read_file(file, kMostBytes - corpus.train.size());
  }
  corpus.files = static_cast<std::int64_t>(files.size());
  const std::size_t cut = corpus.train.size() - corpus.train.size() / 10;
  corpus.validation = corpus.train.substr(cut);
  corpus.train.resize(cut);
  return corpus;
}

TextWindows::TextWindows(const std::string& name, std::string text, std::int64_t length)
    : Dataset(name, windows_of(name, text, length),
              {{lockstep::nn::StateField::tokens, lockstep::DType::i32, {length}},
               {lockstep::nn::StateField::labels, lockstep::DType::i32, {length}}}),
      text_(std::move(text)),
      length_(length),
      fingerprint_(hash_of(text_, length)) {}

void TextWindows::read_sample(std::int64_t index, std::span<const std::span<std::byte>> out) const {
  const char* window = text_.data() + index * length_;
  for (std::size_t field = 0; field < 2; ++field) {  // the labels lie one byte further
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

TextData open_text(const std::string& data, std::int64_t length, std::int64_t vocabulary) {
  TextData text;
  if (data.starts_with(kTokens)) {
    const std::string folder = data.substr(kTokens.size());
    const lockstep::nn::TokenFolder files = lockstep::nn::find_token_files(folder);
    const auto open = [&](const std::vector<std::string>& paths, const char* part) {
      std::vector<lockstep::nn::TokenFile> opened(paths.begin(), paths.end());
      return std::make_shared<lockstep::nn::TokenWindows>(concat(data, ' ', part), std::move(opened), length,
                                                          vocabulary);
    };
    const auto train = open(files.train, "train");
    const auto validation = open(files.validation, "val");
    text.about =
        concat(data, ": ", train->tokens(), " tokens in ", counted(train->files().size(), "file"), " to train on (",
               train->size(), " windows of ", length, "), ", validation->tokens(), " in ",
               counted(validation->files().size(), "file"), " for validation (", validation->size(), " windows)");
    text.train = train;
    text.validation = validation;
    text.vocabulary = vocabulary;
    text.unit = "token";
    return text;
  }
  Corpus corpus = read_corpus(data);
  const std::size_t train_bytes = corpus.train.size();
  const std::size_t validation_bytes = corpus.validation.size();
  text.train =
      std::make_shared<TextWindows>(corpus.source + ", the part to train on,", std::move(corpus.train), length);
  text.validation =
      std::make_shared<TextWindows>(corpus.source + ", the last tenth,", std::move(corpus.validation), length);
  text.about = concat(corpus.source, ": ", counted(static_cast<std::size_t>(corpus.files), "file"), ", ", train_bytes,
                      " bytes to train on (", text.train->size(), " windows of ", length, "), ", validation_bytes,
                      " for validation (", text.validation->size(), " windows)");
  return text;
}

double bits_of(double loss) {
  return loss / std::numbers::ln2;
}

}  // namespace train_text
