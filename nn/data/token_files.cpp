#include <lockstep/nn/data/token_files.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <limits>
#include <numeric>
#include <system_error>
#include <utility>

#include <lockstep/nn/data/detail/token_ids.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/fnv1a.hpp>
#include <lockstep/runtime/base/text.hpp>

namespace lockstep::nn {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kHeaderBytes = 256 * sizeof(std::int32_t);
constexpr std::int32_t kGpt2Magic = 20240520;
constexpr std::int32_t kLlama3Magic = 20240801;

std::uint64_t mixed(std::uint64_t hash, std::uint64_t value) {
  return fnv1a(std::as_bytes(std::span(&value, 1)), hash);
}

std::vector<std::unique_ptr<const TokenIds>> shared(std::vector<TokenFile> files) {
  std::vector<std::unique_ptr<const TokenIds>> ids;
  ids.reserve(files.size());
  for (TokenFile& file : files) {
    ids.push_back(std::make_unique<TokenFile>(std::move(file)));
  }
  return ids;
}

std::int64_t windows_of(const TokenIds& file, std::int64_t length) {
  return (file.size() - 1) / length;  // a window's last label is the token after the window
}

std::int64_t windows_of(const std::string& name, std::span<const std::unique_ptr<const TokenIds>> files,
                        std::int64_t length) {
  require<UsageError>(length >= 1, name, ": length is ", length, " tokens a window, expected 1 or more");
  std::int64_t windows = 0;
  std::int64_t longest = 0;
  for (const std::unique_ptr<const TokenIds>& file : files) {
    windows += windows_of(*file, length);
    longest = std::max(longest, file->size());
  }
  require<DataError>(windows >= 1, name, ": the longest of ", files.size(), files.size() == 1 ? " file" : " files",
                     " has ", longest, " tokens, expected more than the ", length, " tokens of a window");
  return windows;
}

bool has_word(const std::string& name, std::initializer_list<const char*> words) {
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find_first_of("_-.", begin), name.size());
    if (std::find(words.begin(), words.end(), name.substr(begin, end - begin)) != words.end()) {
      return true;
    }
    begin = end + 1;
  }
  return false;
}

}  // namespace

TokenFile::TokenFile(const std::string& path) : file_(std::make_unique<MappedFile>(path)) {
  const std::string shown = printable(path);
  const std::uint64_t bytes = file_->size();
  std::array<std::int32_t, 3> header{};
  if (bytes >= sizeof header) {
    std::memcpy(header.data(), file_->bytes(0, sizeof header).data(), sizeof header);
  }
  const auto [magic, version, count] = header;
  if (magic == kGpt2Magic || magic == kLlama3Magic) {
    const std::int32_t expected = magic == kGpt2Magic ? 1 : 7;
    require<DataError>(version == expected, shown, ": a token file of version ", version, ", expected ", expected);
    width_ = magic == kGpt2Magic ? 2 : 4;
    offset_ = kHeaderBytes;
    require<DataError>(count >= 1, shown, ": its header says ", count, " tokens, expected 1 or more");
    const std::uint64_t whole = offset_ + static_cast<std::uint64_t>(count) * width_;
    require<DataError>(bytes == whole, shown, ": ", bytes, " bytes, expected ", whole, " bytes for a header and ",
                       count, " tokens");
    size_ = count;
    return;
  }
  require<DataError>(bytes > 0 && bytes % width_ == 0, shown, ": ", bytes,
                     " bytes, expected token ids of two bytes each, one or more");
  size_ = static_cast<std::int64_t>(bytes / width_);
}

void TokenFile::read(std::int64_t begin, std::int64_t vocabulary, std::span<std::int32_t> out) const {
  const std::byte* from =
      file_->bytes(offset_ + static_cast<std::uint64_t>(begin) * width_, out.size() * width_).data();
  if (const std::size_t bad = detail::widen_ids(from, width_, vocabulary, out); bad < out.size()) {
    throw DataError(concat(printable(path()), ": token ", begin + static_cast<std::int64_t>(bad), " is ",
                           static_cast<std::uint32_t>(out[bad]), ", expected one below the vocabulary's ", vocabulary));
  }
}

void TokenFile::ahead(std::int64_t begin, std::int64_t count) const noexcept {
  file_->ahead(offset_ + static_cast<std::uint64_t>(begin) * width_, static_cast<std::uint64_t>(count) * width_);
}

std::uint64_t TokenFile::fingerprint() const {
  constexpr std::uint64_t kPage = 4096;
  constexpr std::uint64_t kPages = 256;
  const std::uint64_t bytes = file_->size();
  std::uint64_t hash = mixed(mixed(kFnvBegin, bytes), width_);
  const std::uint64_t pages = std::min(kPages, (bytes + kPage - 1) / kPage);
  for (std::uint64_t page = 0; page < pages; ++page) {
    const std::uint64_t begin = pages == 1 ? 0 : (bytes - kPage) * page / (pages - 1);  // the last page ends the file
    hash = fnv1a(file_->bytes(begin, std::min(kPage, bytes - begin)), hash);
  }
  return hash;
}

TokenWindows::TokenWindows(const std::string& name, std::vector<TokenFile> files, std::int64_t length,
                           std::int64_t vocabulary)
    : TokenWindows(name, shared(std::move(files)), length, vocabulary) {}

TokenWindows::TokenWindows(const std::string& name, std::vector<std::unique_ptr<const TokenIds>> files,
                           std::int64_t length, std::int64_t vocabulary)
    : Dataset(name, windows_of(name, files, length),
              {{StateField::tokens, DType::i32, {length}}, {StateField::labels, DType::i32, {length}}}),
      files_(std::move(files)),
      length_(length),
      vocabulary_(vocabulary),
      fingerprint_(mixed(kFnvBegin, static_cast<std::uint64_t>(length))) {
  require<UsageError>(vocabulary >= 1 && vocabulary <= std::numeric_limits<std::int32_t>::max(), this->name(),
                      ": the vocabulary is ", vocabulary, ", expected 1 to ", std::numeric_limits<std::int32_t>::max());
  std::int64_t first = 0;
  for (const std::unique_ptr<const TokenIds>& file : files_) {
    first_.push_back(first);
    first += windows_of(*file, length_);
    fingerprint_ = mixed(fingerprint_, file->fingerprint());
  }
}

std::int64_t TokenWindows::tokens() const {
  return std::accumulate(
      files_.begin(), files_.end(), std::int64_t{0},
      [](std::int64_t sum, const std::unique_ptr<const TokenIds>& file) { return sum + file->size(); });
}

void TokenWindows::read_sample(std::int64_t index, std::span<const std::span<std::byte>> out) const {
  // Finds the last file whose first window is at most `index`. A file without windows has the same first_ as the next
  // file.
  const auto file =
      static_cast<std::size_t>(std::upper_bound(first_.begin(), first_.end(), index) - first_.begin()) - 1;
  const std::int64_t begin = (index - first_[file]) * length_;
  std::array<std::int32_t, 1025> ids;
  for (std::int64_t done = 0; done < length_;) {
    const std::int64_t count = std::min<std::int64_t>(ids.size() - 1, length_ - done);
    files_[file]->read(begin + done, vocabulary_, std::span(ids).first(static_cast<std::size_t>(count) + 1));
    const auto at = static_cast<std::size_t>(done) * sizeof ids[0];
    const auto bytes = static_cast<std::size_t>(count) * sizeof ids[0];
    std::memcpy(out[0].data() + at, ids.data(), bytes);
    std::memcpy(out[1].data() + at, ids.data() + 1, bytes);  // the label of each token is the next token
    done += count;
  }
}

void TokenWindows::ahead(std::int64_t begin, std::int64_t count) const noexcept {
  for (std::size_t file = 0; file < files_.size(); ++file) {
    const std::int64_t windows = (file + 1 < files_.size() ? first_[file + 1] : size()) - first_[file];
    const std::int64_t from = std::max(begin - first_[file], std::int64_t{0});
    const std::int64_t to = std::min(begin + count - first_[file], windows);
    if (from < to) {
      files_[file]->ahead(from * length_, (to - from) * length_ + 1);
    }
  }
}

TokenFolder find_token_files(const std::string& folder) {
  TokenFolder found;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    std::error_code ignored;
    if (at->path().extension() != ".bin" || name.starts_with('.') || !at->is_regular_file(ignored)) {
      continue;
    }
    if (has_word(name, {"train"})) {
      found.train.push_back(at->path().string());
    } else if (has_word(name, {"val", "valid", "validation"})) {
      found.validation.push_back(at->path().string());
    }
  }
  require<FileError>(!error, printable(folder), ": cannot be read: ", error.message(),
                     "; expected a folder that this user may read");
  for (auto [files, word] : {std::pair(&found.train, "train"), std::pair(&found.validation, "val")}) {
    require<DataError>(!files->empty(), printable(folder), ": holds no file of tokens called ", word, ".bin or NAME_",
                       word, "_001.bin, expected at least one");
    std::sort(files->begin(), files->end());
  }
  return found;
}

}  // namespace lockstep::nn
