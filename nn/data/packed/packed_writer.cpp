#include <algorithm>
#include <limits>
#include <utility>

#include <lockstep/nn/data/packed/packed_file.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/text.hpp>
#include <lockstep/runtime/files/crc32.hpp>

namespace lockstep::nn {
namespace {

using Format = detail::PackedFormat;

void put(std::string& to, std::uint64_t value, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i, value >>= 8) {
    to += static_cast<char>(value & 0xFF);
  }
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

std::string begin_of_file() {
  std::string begin(Format::kBegin);
  put(begin, Format::kVersion, 4);
  put(begin, 0, 4);
  return begin;
}

}  // namespace

PackedWriter::PackedWriter(std::string path, PackedStore store, std::vector<std::string> class_names,
                           std::int64_t resized)
    : file_(std::move(path)), store_(store), class_names_(std::move(class_names)), resized_(resized) {
  write(begin_of_file());
}

void PackedWriter::write(std::string_view bytes) {
  try {
    file_.write(bytes_of(bytes));
  } catch (const FileError& failure) {
    throw WriteError(failure.what());
  }
  at_ += bytes.size();
}

void PackedWriter::add(bool test, const PackedSample& sample, std::span<const std::uint8_t> bytes) {
  require<StateError>(test || test_ == 0, "a training sample after one of the test, expected those of the test last");
  const std::string problem = detail::packed_problem(sample, bytes.size(), store_, class_names_.size());
  require<UsageError>(problem.empty(), "sample ", samples(), ": ", problem);
  const std::size_t name = std::min<std::size_t>(sample.name.size(), std::numeric_limits<std::uint16_t>::max());
  put(records_, at_, 8);
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
  write({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
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
  std::string end;
  put(end, at_, 8);
  put(end, index.size(), 8);
  put(end, static_cast<std::uint64_t>(train_), 8);
  put(end, static_cast<std::uint64_t>(test_), 8);
  put(end, class_names_.size(), 4);
  put(end, store_ == PackedStore::files ? 0 : 1, 4);
  put(end, static_cast<std::uint64_t>(resized_), 4);
  put(end, crc32_of(bytes_of(index)), 4);
  end += Format::kEnd;
  put(end, 0, 4);
  put(end, crc32_of(bytes_of(end), crc32_of(bytes_of(begin_of_file()))), 4);
  write(index);
  write(end);
  try {
    file_.commit();
  } catch (const FileError& failure) {
    throw WriteError(failure.what());
  }
}

}  // namespace lockstep::nn
