// The IDX format of MNIST (yann.lecun.com/exdb/mnist): magic number 0x00000803 for images and 0x00000801 for labels,
// then the extents as big-endian 32-bit numbers, then bytes. Files are plain or compressed with gzip (RFC 1952).

#include <algorithm>
#include <array>
#include <cstring>
#include <iomanip>

#include <zlib.h>

#include <lockstep/nn/data/detail/sources.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/files/file.hpp>

namespace lockstep::nn::detail {
namespace {

constexpr std::uint32_t kImageMagic = 0x803;
constexpr std::uint32_t kLabelMagic = 0x801;
constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 34;
constexpr std::uint32_t kMaxSide = 4096;
constexpr int kLeastClasses = 10;

// A source of bytes that is read front to back.
class Source {
 public:
  virtual ~Source() = default;
  Source() = default;
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;
  /// Reads the next bytes to `out` and returns their number, which is less than out.size() only at the end of the
  /// source.
  virtual std::size_t read(std::span<std::uint8_t> out) = 0;
  /// Returns an upper bound for the number of bytes of this source.
  [[nodiscard]] virtual std::uint64_t most() const = 0;
};

class PlainSource final : public Source {
 public:
  explicit PlainSource(const std::string& path) : file_(path) {}
  std::size_t read(std::span<std::uint8_t> out) override {
    const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(out.size(), file_.size() - position_));
    file_.read(position_, std::as_writable_bytes(out.first(count)));
    position_ += count;
    return count;
  }
  std::uint64_t most() const override { return file_.size(); }

 private:
  InputFile file_;
  std::uint64_t position_ = 0;
};

class GzipSource final : public Source {
 public:
  explicit GzipSource(const std::string& path) : file_(path) {
    constexpr int kGzipOnly = 16;
    require<OutOfMemory>(inflateInit2(&stream_, MAX_WBITS + kGzipOnly) == Z_OK, path,
                         ": zlib cannot be set up, expected free memory for it");
  }
  ~GzipSource() override { inflateEnd(&stream_); }

  std::size_t read(std::span<std::uint8_t> out) override {
    std::size_t done = 0;
    while (done < out.size() && !ended_) {
      if (stream_.avail_in == 0) {
        refill();
      }
      const std::size_t piece = std::min<std::size_t>(out.size() - done, std::size_t{1} << 30);
      stream_.next_out = out.data() + done;
      stream_.avail_out = static_cast<uInt>(piece);
      const int status = inflate(&stream_, Z_NO_FLUSH);
      done += piece - stream_.avail_out;
      if (status == Z_STREAM_END) {
        // The file may hold another gzip member after this one.
        ended_ = stream_.avail_in == 0 && position_ == file_.size();
        inflateReset(&stream_);
        continue;
      }
      require<DataError>(status == Z_OK, file_.path(), ": damaged gzip data before byte ", position_ - stream_.avail_in,
                         ": ", stream_.msg != nullptr ? stream_.msg : "no valid compressed data",
                         "; expected an undamaged file: copy it again");
    }
    return done;
  }
  /// Returns 1032 bytes for each byte of the file, the most that Deflate can expand (zlib's technical notes).
  std::uint64_t most() const override { return file_.size() * 1032; }

 private:
  void refill() {
    require<DataError>(position_ < file_.size(), file_.path(), ": ends at byte ", position_,
                       " in the middle of gzip data, expected the whole file: copy it again");
    const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(buffer_.size(), file_.size() - position_));
    file_.read(position_, std::as_writable_bytes(std::span(buffer_).first(count)));
    position_ += count;
    stream_.next_in = buffer_.data();
    stream_.avail_in = static_cast<uInt>(count);
  }

  InputFile file_;
  z_stream stream_{};
  std::array<std::uint8_t, 1 << 16> buffer_;
  std::uint64_t position_ = 0;  // next byte of the file to read into the buffer
  bool ended_ = false;
};

struct Hex {
  std::uint32_t value;
  friend std::ostream& operator<<(std::ostream& out, Hex h) {
    return out << "0x" << std::hex << std::setw(8) << std::setfill('0') << h.value << std::dec << std::setfill(' ');
  }
};

struct Idx {
  std::string path;
  std::vector<std::uint32_t> extents;
  std::vector<std::uint8_t> bytes;
};

Idx read_idx(const std::string& plain, std::uint32_t magic) {
  Idx idx;
  std::unique_ptr<Source> source;
  if (file_exists(plain)) {
    idx.path = plain;
    source = std::make_unique<PlainSource>(plain);
  } else {
    idx.path = plain + ".gz";
    require<DataError>(file_exists(idx.path), plain, ": is missing, with and without .gz; expected an IDX file");
    source = std::make_unique<GzipSource>(idx.path);
  }
  const std::size_t dims = magic & 0xFF;
  std::array<std::uint8_t, 16> header{};
  const auto head = std::span(header).first(4 + 4 * dims);
  const std::size_t got = source->read(head);
  require<DataError>(got == head.size(), idx.path, ": ends at byte ", got, ", expected a header of ", head.size());
  const auto number = [&](std::size_t offset) {
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      value = value << 8 | header[offset + i];
    }
    return value;
  };
  require<DataError>(number(0) == magic, idx.path, ": magic number ", Hex{number(0)}, " at byte 0, expected ",
                     Hex{magic}, dims == 3 ? " (images)" : " (labels)");
  std::uint64_t total = 1;
  bool fits = true;
  for (std::size_t i = 0; i < dims; ++i) {
    idx.extents.push_back(number(4 + 4 * i));
    fits = fits && !__builtin_mul_overflow(total, std::uint64_t{idx.extents.back()}, &total);
    require<DataError>(idx.extents[i] > 0 && (i == 0 || idx.extents[i] <= kMaxSide), idx.path, ": extent ",
                       idx.extents[i], " at byte ", 4 + 4 * i, ", expected 1 to ",
                       i == 0 ? std::uint32_t{0xFFFFFFFF} : kMaxSide);
  }
  require<DataError>(fits && total <= kMaxBytes, idx.path, ": the header asks for too many bytes, expected at most ",
                     kMaxBytes);
  require<DataError>(total <= source->most(), idx.path, ": the header asks for ", total,
                     " bytes, expected at most the ", source->most(), " that the file can hold");
  // The buffer grows with the data read, because the header of a small compressed file may claim a size that is a
  // thousand times the file's size.
  constexpr std::uint64_t kBlock = std::uint64_t{1} << 24;
  std::size_t filled = 0;
  while (filled == idx.bytes.size() && filled < total) {
    idx.bytes.resize(static_cast<std::size_t>(std::min(total, filled + kBlock)));
    filled += source->read(std::span(idx.bytes).subspan(filled));
  }
  require<DataError>(filled == total, idx.path, ": ends after ", filled, " bytes of data (record ",
                     filled / (total / idx.extents[0]), "), expected ", total);
  std::array<std::uint8_t, 1> more{};
  require<DataError>(source->read(more) == 0, idx.path, ": goes on after ", total,
                     " bytes of data, expected the end there");
  return idx;
}

struct Part {
  Idx images;
  Idx labels;
};

Part read_part(const std::string& stem) {
  Part part{read_idx(stem + "-images-idx3-ubyte", kImageMagic), read_idx(stem + "-labels-idx1-ubyte", kLabelMagic)};
  require<DataError>(part.images.extents[0] == part.labels.extents[0], part.labels.path, ": ", part.labels.extents[0],
                     " labels, expected ", part.images.extents[0], " as in ", part.images.path);
  return part;
}

// Returns the number of classes, which is the smallest label above 0 that no sample has, but at least 10. So one
// damaged byte does not make a set of 200 classes. Label 0 may be unused: labels of one part of EMNIST begin with 1.
int count_classes(const std::vector<std::uint8_t>& labels) {
  std::array<bool, 257> used{};
  for (const std::uint8_t label : labels) {
    used[label] = true;
  }
  std::size_t end = used[0] ? 0 : 1;
  while (used[end]) {
    ++end;
  }
  return std::max(kLeastClasses, static_cast<int>(end));
}

void check_labels(const Idx& labels, int classes) {
  for (std::size_t i = 0; i < labels.bytes.size(); ++i) {
    require<DataError>(labels.bytes[i] < classes, labels.path, ": record ", i, ": label ", int{labels.bytes[i]},
                       ", expected 0 to ", classes - 1);
  }
}

/// Throws DataError if the last class has a single training sample and no test sample. A damaged label byte can cause
/// this: if its value is the largest label + 1, the damaged sample is the only sample of a new class. Accepts small
/// sets, in which a class with one sample may be intended.
void require_no_lone_class(const Idx& train, const Idx& test, int classes) {
  constexpr std::size_t kUsual = 10;  // least mean number of samples per class for this check
  const auto last = static_cast<std::uint8_t>(classes - 1);
  const auto lone = std::find(train.bytes.begin(), train.bytes.end(), last);
  const bool alone = classes > kLeastClasses && train.bytes.size() >= kUsual * static_cast<std::size_t>(classes) &&
                     std::count(lone, train.bytes.end(), last) == 1 &&
                     std::find(test.bytes.begin(), test.bytes.end(), last) == test.bytes.end();
  require<DataError>(!alone, train.path, ": record ", lone - train.bytes.begin(), ": label ", int{last},
                     " is there once, and not in ", test.path, "; expected 0 to ", classes - 2,
                     ", or more samples of this class");
}

std::unique_ptr<ImageDataset> make(const std::string& name, Part part, int classes) {
  const auto& e = part.images.extents;
  DatasetInfo info{name, e[0], e[1], e[2], classes};
  return std::make_unique<StoredImages>(std::move(info), 1, std::move(part.images.bytes), std::move(part.labels.bytes));
}

}  // namespace

DataSplit open_idx(const std::string& folder) {
  Part train = read_part(folder + "/train");
  const int classes = count_classes(train.labels.bytes);
  check_labels(train.labels, classes);
  Part test = read_part(folder + "/t10k");
  check_labels(test.labels, classes);
  require_no_lone_class(train.labels, test.labels, classes);
  require<DataError>(
      std::equal(train.images.extents.begin() + 1, train.images.extents.end(), test.images.extents.begin() + 1),
      test.images.path, ": images of ", test.images.extents[1], " x ", test.images.extents[2], ", expected ",
      train.images.extents[1], " x ", train.images.extents[2], " as in ", train.images.path);
  DataSplit split;
  split.train = make("idx:" + folder + " train", std::move(train), classes);
  split.test = make("idx:" + folder + " test", std::move(test), classes);
  return split;
}

}  // namespace lockstep::nn::detail
