// The input makes four files: images and labels for training, images and labels for the test. Its first byte has flags.
// Bit i gives file i the suffix .gz. Bit 4 + i makes this reader compress file i. Four pieces follow, one for each
// file. A piece is a 16-bit length and that number of bytes.
#include <array>

#include <zlib.h>

#include <lockstep/nn/data/detail/sources.hpp>

#include "tests/fuzz/support.hpp"

namespace lockstep::fuzz {

namespace {

std::string gzip(const std::string& text) {
  z_stream stream{};
  check(deflateInit2(&stream, 1, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK, "zlib");
  std::string out(deflateBound(&stream, static_cast<uLong>(text.size())), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  check(deflate(&stream, Z_FINISH) == Z_STREAM_END, "zlib");
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

struct Part {
  std::string content;  ///< bytes in the IDX format, unless the part is opaque
  bool opaque = false;  ///< true for a .gz file whose bytes come from the input as they are
};

std::size_t number(const std::string& bytes, std::size_t at) {
  std::size_t value = 0;
  for (std::size_t i = at; i < at + 4; ++i) {
    value = value << 8 | static_cast<unsigned char>(bytes.at(i));
  }
  return value;
}

/// Compares the images and labels of `set` with the bytes of its files.
void check_set(const nn::ImageDataset& set, const Part& images, const Part& labels) {
  check(set.classes() >= 10 && set.classes() <= 256, "classes: ", set.classes());
  std::vector<std::uint8_t> image(static_cast<std::size_t>(set.image_bytes()));
  const auto pixels = static_cast<std::size_t>(set.height() * set.width());
  for (std::int64_t i = 0; i < set.size(); ++i) {
    check(set.label(i) >= 0 && set.label(i) < set.classes(), "label ", set.label(i));
    check(
        labels.opaque || set.label(i) == static_cast<unsigned char>(labels.content.at(8 + static_cast<std::size_t>(i))),
        "label ", i, " is not the file's");
    if (i > 0 && i + 1 < set.size()) {
      continue;
    }
    set.read(i, image);
    for (std::size_t p = 0; p < pixels && !images.opaque; ++p) {
      const auto expected = static_cast<std::uint8_t>(images.content.at(16 + static_cast<std::size_t>(i) * pixels + p));
      check(image[3 * p] == expected && image[3 * p + 1] == expected && image[3 * p + 2] == expected, "pixel ", p,
            " of image ", i, " is not the file's");
    }
  }
  check(images.opaque || images.content.size() == 16 + pixels * number(images.content, 4), "bytes of images left over");
  check(labels.opaque || labels.content.size() == 8 + number(labels.content, 4), "bytes of labels left over");
}

}  // namespace

void idx(Input input) {
  static constexpr std::array kNames{"train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte",
                                     "t10k-labels-idx1-ubyte"};
  Cursor cursor(input);
  const unsigned flags = cursor.byte();
  std::array<Part, 4> parts;
  folder().clear();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const bool gz = (flags >> i & 1U) != 0;
    const bool here = (flags >> (4 + i) & 1U) != 0;
    parts[i] = {text_of(cursor.piece()), gz && !here};
    folder().put(concat(kNames[i], gz ? ".gz" : ""), gz && here ? gzip(parts[i].content) : parts[i].content);
  }
  (void)accepts<DataError>([&] {
    const nn::DataSplit split = nn::detail::open_idx(folder().path());
    check_set(*split.train, parts[0], parts[1]);
    check_set(*split.test, parts[2], parts[3]);
    check(split.train->classes() == split.test->classes() && split.train->height() == split.test->height() &&
              split.train->width() == split.test->width(),
          "training and test differ");
  });
}

}  // namespace lockstep::fuzz
