// The input makes six files, data_batch_1 to 5 and test_batch. Its first byte has flags: bit i says that file i exists.
// For each file that exists there follow a byte and a piece (a 16-bit length and that number of bytes) with the
// beginning of the file. The lowest two bits of the byte are the number of records. Its upper four bits are the number
// of bytes after the last record. All bytes of the file after the piece are zero.
#include <array>

#include <lockstep/nn/data/detail/sources.hpp>

#include "tests/fuzz/support.hpp"

namespace lockstep::fuzz {

namespace {

constexpr std::size_t kPlane = 1024;
constexpr std::size_t kRecord = 1 + 3 * kPlane;

void check_set(const nn::ImageDataset& set, const std::string& bytes) {
  check(static_cast<std::size_t>(set.size()) * kRecord == bytes.size(), set.size(), " records of ", bytes.size(),
        " bytes");
  std::vector<std::uint8_t> image(3 * kPlane);
  for (std::int64_t i = 0; i < set.size(); ++i) {
    const std::string record = bytes.substr(static_cast<std::size_t>(i) * kRecord, kRecord);
    check(set.label(i) == record[0] && set.label(i) >= 0 && set.label(i) < 10, "label ", set.label(i));
    set.read(i, image);
    for (std::size_t p = 0; p < kPlane; ++p) {
      for (std::size_t c = 0; c < 3; ++c) {
        check(image[3 * p + c] == static_cast<std::uint8_t>(record[1 + c * kPlane + p]), "pixel ", p);
      }
    }
  }
}

}  // namespace

void cifar10(Input input) {
  Cursor cursor(input);
  const unsigned flags = cursor.byte();
  std::string train;
  std::string test;
  folder().clear();
  for (unsigned i = 0; i < 6; ++i) {
    if ((flags >> i & 1U) == 0) {
      continue;
    }
    const unsigned size = cursor.byte();
    std::string bytes = text_of(cursor.piece());
    bytes.resize(kRecord * (size & 3U) + (size >> 4), '\0');
    folder().put(i == 5 ? "test_batch.bin" : concat("data_batch_", i + 1, ".bin"), bytes);
    (i == 5 ? test : train) += bytes;
  }
  (void)accepts<DataError>([&] {
    const nn::DataSplit split = nn::detail::open_cifar10(folder().path());
    check_set(*split.train, train);
    check_set(*split.test, test);
  });
}

}  // namespace lockstep::fuzz
