// The input has a byte of flags and then a file. Flag 1 makes this reader correct the checksums of the file's
// beginning, index and end. Flag 2 makes it correct the checksums of the samples, too.
#include <algorithm>
#include <cstddef>
#include <string>

#include <lockstep/nn/data/dataset.hpp>
#include <lockstep/nn/data/images/decode.hpp>
#include <lockstep/nn/data/open_data.hpp>
#include <lockstep/nn/data/packed/check_packed.hpp>
#include <lockstep/nn/data/packed/packed_file.hpp>

#include "tests/fuzz/packed_bytes.hpp"
#include "tests/fuzz/support.hpp"

namespace lockstep::fuzz {

namespace {

constexpr std::size_t kRecord = 40;

/// Corrects the checksums of the file's parts, as far as the offsets in the file are valid.
void repair(std::string& bytes, bool samples) {
  if (bytes.size() < kBegin + kEnd) {
    return;
  }
  const std::size_t end = bytes.size() - kEnd;
  const std::uint64_t at = number(bytes, end, 8);
  if (at <= end) {
    const auto index = static_cast<std::size_t>(at);
    std::size_t from = index;
    for (std::uint64_t i = number(bytes, end + 32, 4); i > 0 && from + 4 <= end; --i) {
      from += 4 + number(bytes, from, 4);
    }
    for (; samples && from + kRecord <= end; from += kRecord) {
      const std::uint64_t offset = number(bytes, from, 8);
      if (offset >= bytes.size()) {
        break;
      }
      put(bytes, from + 16, crc_of(bytes, static_cast<std::size_t>(offset), number(bytes, from + 8, 8)));
    }
    put(bytes, end + 44, crc_of(bytes, index, end - index));
  }
  put(bytes, end + 60, crc_of(bytes, end, 60, crc_of(bytes, 0, kBegin)));
}

void check_file(const nn::PackedFile& file, const std::string& bytes) {
  const std::int64_t size = file.train_size() + file.test_size();
  check(file.train_size() >= 1 && file.test_size() >= 1, size, " samples");
  std::string all;
  bool whole = true;
  for (std::int64_t i = 0; i < size; ++i) {
    const nn::PackedSample& sample = file.sample(i);
    check(sample.label >= 0 && static_cast<std::size_t>(sample.label) < file.class_names().size(), "label ",
          sample.label);
    check(sample.width >= 1 && sample.height >= 1 && sample.width <= nn::images::kMaxPixels / sample.height, "size");
    whole = accepts<DataError>([&] {
              const auto part = file.read(i);
              all.append(part.begin(), part.end());
            }) &&
            whole;
  }
  check(!whole || bytes.compare(kBegin, all.size(), all) == 0, "samples are not those of the file");
  const nn::PackedCheck found = nn::check_packed(file, 1, 20, [](const nn::PackProgress&) {});
  check(found.decoded ? whole || found.damaged > 0 : whole == (found.damaged == 0), found.damaged, " damaged samples");
}

}  // namespace

void packed(Input input) {
  Cursor cursor(input);
  const unsigned flags = cursor.byte();
  std::string bytes = text_of(cursor.rest());
  if ((flags & 1U) != 0) {
    repair(bytes, (flags & 2U) != 0);
  }
  folder().clear();
  folder().put("a.pack", bytes);
  bool files = false;
  const bool opened = accepts<DataError>([&] {
    const nn::PackedFile file(folder() / "a.pack");
    check_file(file, bytes);
    files = file.store() == nn::PackedStore::files;
  });
  if (!opened || (files && !nn::images::available())) {
    return;
  }
  nn::DataOptions options{.spec = "packed:" + (folder() / "a.pack")};
  options.folder.image_size = 3;
  const nn::DataSplit split = nn::open_data(options);
  for (const nn::ImageDataset* set : {split.train.get(), split.test.get()}) {
    std::vector<std::uint8_t> image(static_cast<std::size_t>(set->image_bytes()));
    for (const std::int64_t i : {std::int64_t{0}, set->size() - 1}) {
      (void)accepts<DataError>([&] { set->read(i, image); });
      (void)accepts<DataError>([&] { set->read_in(1, i, image); });
    }
  }
}

}  // namespace lockstep::fuzz
