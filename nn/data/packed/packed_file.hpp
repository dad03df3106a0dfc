#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <lockstep/runtime/files/file.hpp>

/// Format of a file of pictures (JPEG and PNG files, or their pixels), which lockstep-pack writes. Training then opens
/// one file instead of thousands of small files. Numbers are little endian, and there is no padding.
///
/// Header and footer have a fixed size in bytes, which follows their names below. Each of their entries, and each entry
/// of an index record, is listed as: offset from the begin of the header, footer or record; type; meaning.
///
///   header   16   0 "LSPACK\r\n"   8 u32 version, 1   12 u32 content: 0 pictures, described here; 1 text or tokens,
///                 described in packed_tokens.hpp
///   samples       the training samples, then the test samples: JPEG or PNG files, or pixels, u8 (height, width, 3)
///   index         the names of the classes, by label: u32 length, bytes
///                 a record of 40 bytes for each sample, in the same order:
///                    0 u64 offset of the sample in the file     8 u64 size of the sample in bytes
///                   16 u32 CRC-32 of the sample                20 u32 label
///                   24 u32 width as stored, before `orientation` turns the picture      28 u32 height, likewise
///                   32 u8 EXIF orientation, 1 to 8             33 u8 kind of the original file: 0 JPEG, 1 PNG
///                   34 u16 length of the name                  36 u32 0
///                 the names of the files, one after the other, relative to the folder; a file without a name has
///                 length 0
///   footer   64   0 u64 offset of the index    8 u64 size of the index in bytes
///                16 u64 number of training samples   24 u64 number of test samples
///                32 u32 number of classes   36 u32 kind of the samples: 0 files, 1 pixels
///                40 u32 shorter side to which larger pictures were resized, for pixels; 0: none were resized
///                44 u32 CRC-32 of the index   48 "LSPACKED"   56 u32 0
///                60 u32 CRC-32 of the header and of footer bytes 0 to 59
///
/// A flipped bit is always detected. Opening the file detects a flip in header, index or footer. Reading a sample
/// detects a flip in the sample.
namespace lockstep::nn {
namespace detail {
class PackedOutput;  // defined in nn/data/detail/packed_frame.hpp
}

enum class PackedStore : unsigned char { files, pixels };
[[nodiscard]] const char* name_of(PackedStore store);  ///< returns "files" or "pixels"

/// Properties of a sample that the index holds.
struct PackedSample {
  std::int32_t label = 0;
  std::int64_t width = 0;
  std::int64_t height = 0;
  int orientation = 1;
  bool jpeg = true;         ///< true: the original file is a JPEG; false: a PNG
  std::string_view name{};  ///< path of the original file relative to the folder
};

/// A packed file of pictures, opened for reading. The file is mapped into memory, so the ranks of a node share the
/// pages of the file. Any number of threads may read. If the file is cut off, damaged, of another version, or not a
/// packed file of pictures, the constructor throws a DataError of one line with the path. The constructor allocates at
/// most a small multiple of the file's size, whatever the file's numbers state.
class PackedFile {
 public:
  explicit PackedFile(const std::string& path);

  [[nodiscard]] const std::string& path() const { return file_.path(); }
  [[nodiscard]] std::uint64_t bytes() const { return file_.size(); }  ///< size of the file in bytes
  [[nodiscard]] PackedStore store() const { return store_; }
  [[nodiscard]] std::int64_t resized() const { return resized_; }  ///< shorter side after resizing; 0: not resized
  [[nodiscard]] const std::vector<std::string>& class_names() const { return class_names_; }
  [[nodiscard]] std::int64_t train_size() const { return train_; }
  [[nodiscard]] std::int64_t test_size() const { return static_cast<std::int64_t>(entries_.size()) - train_; }
  /// Returns the properties of sample `index`, 0 <= index < train_size() + test_size(). The test samples come after the
  /// training samples.
  [[nodiscard]] const PackedSample& sample(std::int64_t index) const { return entry(index).sample; }
  /// Returns the bytes of sample `index`, valid as long as this object exists. Each call computes the sample's
  /// checksum, and throws DataError if the checksum is wrong. For stored pixels the checksum takes a noticeable part of
  /// the reading time; with libdeflate (LOCKSTEP_LIBDEFLATE) it takes less.
  [[nodiscard]] std::span<const std::uint8_t> read(std::int64_t index) const;
  /// Hints that the bytes of samples [begin, begin + count) will be read soon (MappedFile::ahead()).
  void ahead(std::int64_t begin, std::int64_t count) const noexcept;
  /// Returns the name of sample `index` for error texts, like "'out.pack': sample 7 of class 'cat'
  /// ('train/cat/1.jpg')".
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
  std::string names_;  ///< names of all samples, one after the other
  std::vector<Entry> entries_;
};

/// Progress in writing or checking a packed file.
struct PackProgress {
  std::int64_t done = 0;  ///< units written or checked so far
  std::int64_t all = 0;
  std::uint64_t bytes = 0;      ///< bytes written or read so far
  const char* what = "images";  ///< name of the unit that `done` and `all` count
};

/// Writes a packed file of pictures. commit() makes the complete file appear at its path, where it replaces an older
/// file. Throws FileError if the file cannot be made, and WriteError if the disk is full.
class PackedWriter {
 public:
  PackedWriter(std::string path, PackedStore store, std::vector<std::string> class_names, std::int64_t resized = 0);
  ~PackedWriter();
  PackedWriter(const PackedWriter&) = delete;
  PackedWriter& operator=(const PackedWriter&) = delete;
  /// Appends a sample. Throws StateError if a training sample comes after a test sample. Throws UsageError if
  /// PackedFile would refuse the properties of the sample.
  void add(bool test, const PackedSample& sample, std::span<const std::uint8_t> bytes);
  void commit();                              ///< throws UsageError unless there are training and test samples
  [[nodiscard]] std::uint64_t bytes() const;  ///< bytes written so far
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

/// Returns the reason why PackedFile refuses `sample`, of `bytes` bytes. Returns an empty text if the sample is valid.
[[nodiscard]] std::string packed_problem(const PackedSample& sample, std::uint64_t bytes, PackedStore store,
                                         std::size_t classes);

}  // namespace detail
}  // namespace lockstep::nn
