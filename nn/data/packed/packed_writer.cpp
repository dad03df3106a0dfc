#include <algorithm>
#include <limits>
#include <utility>

#include <lockstep/nn/data/detail/packed_frame.hpp>
#include <lockstep/nn/data/packed/packed_file.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/files/crc32.hpp>

namespace lockstep::nn {
namespace {

/// Short, as a record is a row of them.
void put(std::string& to, std::uint64_t value, std::size_t count) {
  detail::put_packed_number(to, value, count);
}

}  // namespace

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
  require<StateError>(test || test_ == 0, "a training sample after one of the test, expected those of the test last");
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
