#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <lockstep/runtime/files/file.hpp>

/// Pictures in one file, as lockstep-pack writes them: training without a look at thousands of small files. Numbers are
/// little endian, and nothing lies between the parts:
///
///   begin    16   0 "LSPACK\r\n"   8 u32 version, 1   12 u32 what it holds: 0 pictures, as here; 1 text or tokens,
///                 whose samples, index and end packed_tokens.hpp describes
///   samples       of the training set, then of the test: a JPEG or PNG file each, or pixels, u8 (height, width, 3)
///   index         the names of the classes, by label: u32 length, bytes
///                 a record of 40 bytes for each sample, in the same order:
///                    0 u64 offset of its bytes in the file     8 u64 how many   16 u32 their CRC-32   20 u32 label
///                   24 u32 width   28 u32 height               as stored, before the picture is turned
///                   32 u8 EXIF's orientation, 1 to 8           33 u8 what the file was: 0 JPEG, 1 PNG
///                   34 u16 length of its name                  36 u32 0
///                 the names, one after the other: of the files, relative to the folder; of length 0 where there is
///                 none
///   end      64   0 u64 offset of the index    8 u64 its bytes   16 u64 training samples   24 u64 test samples
///                32 u32 classes   36 u32 what a sample is: 0 files, 1 pixels
///                40 u32 of pixels: the shorter side that larger pictures were resized to; 0: none were
///                44 u32 CRC-32 of the index   48 "LSPACKED"   56 u32 0   60 u32 CRC-32 of begin and these 60 bytes
///
/// So a bit that changes anywhere is noticed: in begin, index and end when the file is opened, in a sample when it is
/// read.
namespace lockstep::nn {
namespace detail {
class PackedOutput;  // nn/data/detail/packed_frame.hpp
}

enum class PackedStore : unsigned char { files, pixels };
[[nodiscard]] const char* name_of(PackedStore store);  ///< "files", "pixels"

/// What the index says of a sample.
struct PackedSample {
  std::int32_t label = 0;
  std::int64_t width = 0;
  std::int64_t height = 0;
  int orientation = 1;
  bool jpeg = true;         ///< the file was a JPEG, else a PNG
  std::string_view name{};  ///< relative to the folder
};

/// A packed file, opened for reading: mapped, so that the ranks of a node share its pages. Any number of threads.
/// DataError, one line with the path, for a file that is cut, damaged, of another version or none of this kind. Takes
/// no more memory than a small multiple of the file's size, whatever its bytes claim.
class PackedFile {
 public:
  explicit PackedFile(const std::string& path);

  [[nodiscard]] const std::string& path() const { return file_.path(); }
  [[nodiscard]] std::uint64_t bytes() const { return file_.size(); }  ///< of the file
  [[nodiscard]] PackedStore store() const { return store_; }
  [[nodiscard]] std::int64_t resized() const { return resized_; }  ///< the shorter side, or 0
  [[nodiscard]] const std::vector<std::string>& class_names() const { return class_names_; }
  [[nodiscard]] std::int64_t train_size() const { return train_; }
  [[nodiscard]] std::int64_t test_size() const { return static_cast<std::int64_t>(entries_.size()) - train_; }
  /// By index, 0 <= index < train_size() + test_size(); those of the test come last.
  [[nodiscard]] const PackedSample& sample(std::int64_t index) const { return entry(index).sample; }
  /// The bytes of a sample, valid as long as this object. Each call computes their checksum, and DataError says that it
  /// is another: a part of the time of pixels that libdeflate makes small (LOCKSTEP_LIBDEFLATE).
  [[nodiscard]] std::span<const std::uint8_t> read(std::int64_t index) const;
  /// The bytes of samples [begin, begin + count) will be read soon (MappedFile::ahead()).
  void ahead(std::int64_t begin, std::int64_t count) const noexcept;
  /// "'out.pack': sample 7 of class 'cat' ('train/cat/1.jpg')", for error texts.
  [[nodiscard]] std::string text_of(std::int64_t index) const;

 private:
  struct Entry {
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    std::uint32_t crc32 = 0;
    PackedSample sample;
  };
  [[nodiscard]] const Entry& entry(std::int64_t index) const { return entries_[static_cast<std::size_t>(index)]; }
  void read_index(std::span<const std::byte> index, std::uint64_t at, std::uint64_t classes, std::uint64_t samples);

  MappedFile file_;
  PackedStore store_ = PackedStore::files;
  std::int64_t resized_ = 0;
  std::int64_t train_ = 0;
  std::vector<std::string> class_names_;
  std::string names_;  ///< of all samples
  std::vector<Entry> entries_;
};

/// How far the writing or the check of a packed file is.
struct PackProgress {
  std::int64_t done = 0;  ///< images looked at
  std::int64_t all = 0;
  std::uint64_t bytes = 0;      ///< written or read
  const char* what = "images";  ///< what is counted
};

/// Writes a packed file, which appears with commit(), durable, in place of an older one. FileError when it cannot be
/// made, WriteError when the disk is full.
class PackedWriter {
 public:
  PackedWriter(std::string path, PackedStore store, std::vector<std::string> class_names, std::int64_t resized = 0);
  ~PackedWriter();
  PackedWriter(const PackedWriter&) = delete;
  PackedWriter& operator=(const PackedWriter&) = delete;
  /// All samples for training come before those of the test (StateError). UsageError for numbers that the reader
  /// refuses.
  void add(bool test, const PackedSample& sample, std::span<const std::uint8_t> bytes);
  void commit();                              ///< UsageError without samples for training or the test
  [[nodiscard]] std::uint64_t bytes() const;  ///< written so far
  [[nodiscard]] std::int64_t samples() const { return train_ + test_; }

 private:
  std::unique_ptr<detail::PackedOutput> file_;
  PackedStore store_;
  std::vector<std::string> class_names_;
  std::int64_t resized_;
  std::int64_t train_ = 0;
  std::int64_t test_ = 0;
  std::string records_;
  std::string names_;
};

namespace detail {

/// What is wrong with a sample of so many bytes; empty: nothing.
[[nodiscard]] std::string packed_problem(const PackedSample& sample, std::uint64_t bytes, PackedStore store,
                                         std::size_t classes);

}  // namespace detail
}  // namespace lockstep::nn
