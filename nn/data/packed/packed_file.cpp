#include <lockstep/nn/data/packed/packed_file.hpp>

#include <algorithm>
#include <limits>
#include <utility>

#include <lockstep/nn/data/detail/packed_frame.hpp>
#include <lockstep/nn/data/detail/pictures.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/text.hpp>
#include <lockstep/runtime/files/crc32.hpp>

namespace lockstep::nn {
namespace {

using detail::crc_text;
using detail::packed_number;
using detail::packed_text;

constexpr std::size_t kRecordBytes = 40;

/// Appends `value` to `to` as a number of `count` bytes: a short name for put_packed_number().
void put(std::string& to, std::uint64_t value, std::size_t count) {
  detail::put_packed_number(to, value, count);
}

}  // namespace

const char* name_of(PackedStore store) {
  return store == PackedStore::files ? "files" : "pixels";
}

std::string detail::packed_problem(const PackedSample& sample, std::uint64_t bytes, PackedStore store,
                                   std::size_t classes) {
  const std::int64_t width = sample.width;
  const std::int64_t height = sample.height;
  if (sample.label < 0 || static_cast<std::size_t>(sample.label) >= classes) {
    return concat("label ", sample.label, ", expected 0 to ", classes - 1);
  }
  if (width < 1 || height < 1 || width > images::kMaxPixels / height) {
    return concat(width, " x ", height, " pixels, expected 1 to ", images::kMaxPixels);
  }
  if (sample.orientation < 1 || sample.orientation > 8) {
    return concat("orientation ", sample.orientation, ", expected 1 to 8");
  }
  const auto pixels = static_cast<std::uint64_t>(width * height * 3);
  if (store == PackedStore::pixels ? bytes != pixels : bytes < 1 || bytes > images::kMaxFileBytes) {
    return concat(bytes, " bytes, expected ",
                  store == PackedStore::pixels ? concat(pixels, ", ", width, " x ", height, " pixels")
                                               : concat("1 to ", images::kMaxFileBytes));
  }
  return {};
}

images::Header detail::packed_header(const PackedSample& sample, std::span<const std::uint8_t> bytes,
                                     const std::string& text) {
  const images::Header header = images::read_header(bytes, text);
  require<DataError>(header.width == sample.width && header.height == sample.height, text, ": a picture of ",
                     header.width, " x ", header.height, ", expected ", sample.width, " x ", sample.height,
                     ", as the index has it");
  return header;
}

PackedFile::PackedFile(const std::string& path) : file_(path) {
  const detail::PackedFrame frame = detail::read_packed_frame(file_, detail::PackedContent::pictures);
  const std::string shown = printable(path);
  const auto [train, test, classes, store, resized] = frame.numbers;
  const std::uint64_t bytes = frame.index.size();
  const std::uint64_t fit = bytes / kRecordBytes;
  require<DataError>(train >= 1 && test >= 1 && train <= fit && test <= fit - train, shown, ": ", train,
                     " training and ", test, " test samples, expected at least one of each and at most ", fit,
                     " in all, as the index has ", bytes, " bytes");
  require<DataError>(classes >= 1 && classes <= bytes / 4, shown, ": ", classes, " classes, expected 1 to ", bytes / 4,
                     ", as the index has ", bytes, " bytes");
  require<DataError>(store <= 1, shown, ": samples of kind ", store, ", expected 0 (files) or 1 (pixels)");
  store_ = store == 0 ? PackedStore::files : PackedStore::pixels;
  resized_ = static_cast<std::int64_t>(resized);
  train_ = static_cast<std::int64_t>(train);
  read_index(frame.index, frame.at, classes, train + test);
}

void PackedFile::read_index(std::span<const std::byte> index, std::uint64_t at, std::uint64_t classes,
                            std::uint64_t samples) {
  std::size_t from = 0;
  const auto take = [&](std::uint64_t count) {
    require<DataError>(count <= index.size() - from, printable(path()), ": the index ends after ", index.size(),
                       " bytes, expected ", count, " more bytes from byte ", from, " on");
    const auto part = index.subspan(from, static_cast<std::size_t>(count));
    from += part.size();
    return part;
  };
  for (std::uint64_t i = 0; i < classes; ++i) {
    class_names_.emplace_back(packed_text(take(packed_number(take(4), 0, 4))));
  }
  const auto records = take(samples * kRecordBytes);
  std::vector<std::size_t> lengths;
  std::uint64_t all_names = 0;
  entries_.reserve(static_cast<std::size_t>(samples));
  for (std::size_t i = 0; i < samples; ++i) {
    const auto record = records.subspan(i * kRecordBytes, kRecordBytes);
    require<DataError>(
        packed_number(record, 33, 1) <= 1 && packed_number(record, 36, 4) == 0, printable(path()), ": record ", i,
        " of the index has bytes of an unknown meaning, expected a file of this lockstep-pack: pack it again");
    Entry& entry = entries_.emplace_back();
    entry.offset = packed_number(record, 0, 8);
    entry.bytes = packed_number(record, 8, 8);
    entry.crc32 = static_cast<std::uint32_t>(packed_number(record, 16, 4));
    entry.sample.label = static_cast<std::int32_t>(static_cast<std::uint32_t>(packed_number(record, 20, 4)));
    entry.sample.width = static_cast<std::int64_t>(packed_number(record, 24, 4));
    entry.sample.height = static_cast<std::int64_t>(packed_number(record, 28, 4));
    entry.sample.orientation = static_cast<int>(packed_number(record, 32, 1));
    entry.sample.jpeg = packed_number(record, 33, 1) == 0;
    lengths.push_back(static_cast<std::size_t>(packed_number(record, 34, 2)));
    all_names += lengths.back();
  }
  names_ = packed_text(take(all_names));
  require<DataError>(from == index.size(), printable(path()), ": the index has ", index.size(), " bytes, expected ",
                     from, ": the file is damaged, pack it again");
  std::uint64_t offset = detail::PackedFormat::kBeginBytes;
  std::size_t name = 0;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    entries_[i].sample.name = std::string_view(names_).substr(name, lengths[i]);
    name += lengths[i];
    const std::string problem =
        detail::packed_problem(entries_[i].sample, entries_[i].bytes, store_, class_names_.size());
    require<DataError>(problem.empty(), text_of(static_cast<std::int64_t>(i)), ": ", problem);
    require<DataError>(entries_[i].offset == offset && entries_[i].bytes <= at - offset,
                       text_of(static_cast<std::int64_t>(i)), ": ", entries_[i].bytes, " bytes from byte ",
                       entries_[i].offset, " on, expected them from byte ", offset, " on and before the index at byte ",
                       at);
    offset += entries_[i].bytes;
  }
  require<DataError>(offset == at, printable(path()), ": samples end at byte ", offset, ", expected ", at,
                     ", where the index begins");
}

std::span<const std::uint8_t> PackedFile::read(std::int64_t index) const {
  const Entry& wanted = entry(index);
  const auto bytes = file_.bytes(wanted.offset, wanted.bytes);
  if (const std::uint32_t found = crc32_of(bytes); found != wanted.crc32) {
    throw DataError(concat(text_of(index), ": CRC-32 ", crc_text(found), ", expected ", crc_text(wanted.crc32),
                           ": the file is damaged"));
  }
  return {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()};
}

void PackedFile::ahead(std::int64_t begin, std::int64_t count) const noexcept {
  if (count > 0) {  // samples lie one after the other, so their bytes form one range
    const Entry& last = entry(begin + count - 1);
    file_.ahead(entry(begin).offset, last.offset + last.bytes - entry(begin).offset);
  }
}

std::string PackedFile::text_of(std::int64_t index) const {
  const PackedSample& told = sample(index);
  std::string text = concat(printable(path()), ": sample ", index);
  if (const auto label = static_cast<std::size_t>(told.label); told.label >= 0 && label < class_names_.size()) {
    text += concat(" of class ", printable(class_names_[label]));
  }
  return told.name.empty() ? text : concat(text, " (", printable(told.name), ")");
}

PackedWriter::PackedWriter(std::string path, PackedStore store, std::vector<std::string> class_names,
                           std::int64_t resized)
    : file_(std::make_unique<detail::PackedOutput>(std::move(path), detail::PackedContent::pictures)),
      store_(store),
      class_names_(std::move(class_names)),
      resized_(resized) {}

PackedWriter::~PackedWriter() = default;

std::uint64_t PackedWriter::bytes() const {
  return file_->at();
}

void PackedWriter::add(bool test, const PackedSample& sample, std::span<const std::uint8_t> bytes) {
  require<StateError>(test || test_ == 0,
                      "a training sample is added after a test sample, expected all training samples first");
  const std::string problem = detail::packed_problem(sample, bytes.size(), store_, class_names_.size());
  require<UsageError>(problem.empty(), "sample ", samples(), ": ", problem);
  const std::size_t name = std::min<std::size_t>(sample.name.size(), std::numeric_limits<std::uint16_t>::max());
  put(records_, file_->at(), 8);
  put(records_, bytes.size(), 8);
  put(records_, crc32_of(std::as_bytes(bytes)), 4);
  put(records_, static_cast<std::uint64_t>(sample.label), 4);
  put(records_, static_cast<std::uint64_t>(sample.width), 4);
  put(records_, static_cast<std::uint64_t>(sample.height), 4);
  put(records_, static_cast<std::uint64_t>(sample.orientation), 1);
  put(records_, sample.jpeg ? 0 : 1, 1);
  put(records_, name, 2);
  put(records_, 0, 4);
  names_ += sample.name.substr(0, name);
  file_->write({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  ++(test ? test_ : train_);
}

void PackedWriter::commit() {
  require<UsageError>(train_ > 0 && test_ > 0, train_, " training and ", test_,
                      " test samples, expected at least one of each");
  std::string index;
  for (const std::string& name : class_names_) {
    put(index, name.size(), 4);
    index += name;
  }
  index += records_;
  index += names_;
  file_->commit(index, {.train = static_cast<std::uint64_t>(train_),
                        .test = static_cast<std::uint64_t>(test_),
                        .at_32 = static_cast<std::uint32_t>(class_names_.size()),
                        .at_36 = store_ == PackedStore::files ? 0U : 1U,
                        .at_40 = static_cast<std::uint32_t>(resized_)});
}

}  // namespace lockstep::nn
