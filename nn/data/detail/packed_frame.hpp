#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <lockstep/runtime/files/file.hpp>

/// Reads and writes the parts that all packed files have, whatever their content: header, footer, and the checksums of
/// header, footer and index. packed/packed_file.hpp describes the format.
namespace lockstep::nn::detail {

/// Kind of content of a packed file. The value is stored in the header of the file.
enum class PackedContent : std::uint32_t { pictures = 0, tokens = 1 };

/// Lengths and magic words of the header (begin) and the footer (end).
struct PackedFormat {
  static constexpr std::string_view kBegin{"LSPACK\r\n"};
  static constexpr std::string_view kEnd{"LSPACKED"};
  static constexpr std::uint32_t kVersion = 1;
  static constexpr std::size_t kBeginBytes = 16;
  static constexpr std::size_t kEndBytes = 64;
};

/// Numbers at bytes 16 to 43 of the footer of a packed file. The first two are the number of training samples and the
/// number of test samples; in a file of tokens, they count parts. The meaning of the three others depends on the
/// content.
struct PackedNumbers {
  std::uint64_t train = 0;
  std::uint64_t test = 0;
  std::uint32_t at_32 = 0;
  std::uint32_t at_36 = 0;
  std::uint32_t at_40 = 0;
};

/// Index and footer of a packed file whose checksums are correct.
struct PackedFrame {
  std::span<const std::byte> index;  ///< bytes of the index, valid as long as the file is open
  std::uint64_t at = 0;              ///< offset in the file at which the samples end and the index begins
  PackedNumbers numbers{};
};

/// Reads and checks header, index and footer of a packed file. If the file is cut off, damaged, of another version or
/// content, or not a packed file, throws a DataError of one line with the path.
[[nodiscard]] PackedFrame read_packed_frame(const MappedFile& file, PackedContent expected);

/// Writes a packed file front to back. commit() makes the complete file appear at its path, also after a power failure;
/// without commit(), no file appears. Throws FileError if the file cannot be made, and WriteError if the disk is full.
class PackedOutput {
 public:
  PackedOutput(std::string path, PackedContent content);  ///< writes the header of the file
  void write(std::string_view bytes);
  void commit(std::string_view index,
              const PackedNumbers& numbers);  ///< writes index and footer, then makes the file appear at its path
  [[nodiscard]] std::uint64_t at() const { return at_; }  ///< bytes written so far

 private:
  AtomicFile file_;
  std::string begin_;
  std::uint64_t at_ = 0;
};

/// Reads a little-endian number of `count` bytes from `bytes`, beginning at bytes[at].
[[nodiscard]] std::uint64_t packed_number(std::span<const std::byte> bytes, std::size_t at, std::size_t count);
/// Appends `value` to `to` as a little-endian number of `count` bytes.
void put_packed_number(std::string& to, std::uint64_t value, std::size_t count);
[[nodiscard]] std::string_view packed_text(std::span<const std::byte> bytes);
/// Formats a CRC-32 as eight hexadecimal digits.
[[nodiscard]] std::string crc_text(std::uint64_t crc32);

/// Checks the path `out` of a file to write. Throws UsageError if `out` is a folder, exists while `overwrite` is false,
/// lies in the folder `source`, or is `source` or one of its lists. Throws FileError if the folder of `out`, or
/// `source`, does not exist.
void require_pack_output(const std::string& out, const std::string& source, bool overwrite);

}  // namespace lockstep::nn::detail
