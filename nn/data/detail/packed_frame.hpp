#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <lockstep/runtime/files/file.hpp>

/// What packed files of all contents have in common (packed/packed_file.hpp describes it): begin, end, and checksums of
/// both and of the index.
namespace lockstep::nn::detail {

/// What a packed file holds, as its begin says.
enum class PackedContent : std::uint32_t { pictures = 0, tokens = 1 };

/// Lengths and words of the format.
struct PackedFormat {
  static constexpr std::string_view kBegin{"LSPACK\r\n"};
  static constexpr std::string_view kEnd{"LSPACKED"};
  static constexpr std::uint32_t kVersion = 1;
  static constexpr std::size_t kBeginBytes = 16;
  static constexpr std::size_t kEndBytes = 64;
};

/// The numbers of the end, at bytes 16 to 43: parts or samples to train on, and for the test; the others mean something
/// else in each content.
struct PackedNumbers {
  std::uint64_t train = 0;
  std::uint64_t test = 0;
  std::uint32_t at_32 = 0;
  std::uint32_t at_36 = 0;
  std::uint32_t at_40 = 0;
};

/// The parts of a packed file whose checksums are right.
struct PackedFrame {
  std::span<const std::byte> index;  ///< valid as long as the file
  std::uint64_t at = 0;              ///< where the index begins, and what is stored ends
  PackedNumbers numbers{};
};

/// DataError, one line with the path, for a file that is cut, damaged, of another version or content, or none of this
/// kind.
[[nodiscard]] PackedFrame read_packed_frame(const MappedFile& file, PackedContent expected);

/// A packed file that is written front to back, and appears whole, durable, or not at all. FileError when it cannot be
/// made, WriteError when the disk is full.
class PackedOutput {
 public:
  PackedOutput(std::string path, PackedContent content);  ///< writes the begin
  void write(std::string_view bytes);
  void commit(std::string_view index, const PackedNumbers& numbers);  ///< writes index and end
  [[nodiscard]] std::uint64_t at() const { return at_; }              ///< bytes written so far

 private:
  AtomicFile file_;
  std::string begin_;
  std::uint64_t at_ = 0;
};

/// A number of `count` bytes at bytes[at].
[[nodiscard]] std::uint64_t packed_number(std::span<const std::byte> bytes, std::size_t at, std::size_t count);
/// Appends one.
void put_packed_number(std::string& to, std::uint64_t value, std::size_t count);
[[nodiscard]] std::string_view packed_text(std::span<const std::byte> bytes);
/// Eight hexadecimal digits.
[[nodiscard]] std::string crc_text(std::uint64_t crc32);

/// The file that will be written: UsageError when it is a folder, exists without `overwrite`, or lies in the folder
/// `source` or is that file. FileError where the system is the reason.
void require_pack_output(const std::string& out, const std::string& source, bool overwrite);

}  // namespace lockstep::nn::detail
