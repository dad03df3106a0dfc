#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <lockstep/runtime/base/dtype.hpp>

namespace lockstep {

class InputFile;

/// One tensor of a file.
struct TensorEntry {
  std::string name;
  std::string dtype;                ///< name in safetensors files: "F32", "BF16", "BOOL", ...
  std::vector<std::int64_t> shape;  ///< empty: a scalar
  /// Distances of neighbours along each axis in the file, in elements; empty: row-major without gaps.
  std::vector<std::int64_t> strides{};
  std::uint64_t offset = 0;  ///< offset of the first element from the start of the file
  std::uint64_t bytes = 0;   ///< bytes of all elements

  [[nodiscard]] std::optional<DType> type() const;  ///< nullopt when DType has no such type
};

/// A file of named tensors in any format, opened for reading. SafetensorsFile (safetensors.hpp) and TorchFile
/// (torch_file.hpp) read and check the formats. Only movable. Reading is thread-safe.
class TensorFile {
 public:
  ~TensorFile();
  TensorFile(TensorFile&&) noexcept;
  TensorFile& operator=(TensorFile&&) noexcept;

  [[nodiscard]] const std::string& path() const;
  [[nodiscard]] const char* format() const;  ///< "safetensors" or "torch"
  [[nodiscard]] const std::vector<TensorEntry>& entries() const;
  [[nodiscard]] const TensorEntry* find(const std::string& name) const;  ///< nullptr when there is none
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const;

  /// Reads bytes [begin, begin + out.size()) of a tensor; the elements are row-major whatever their strides in the
  /// file. With strides, host memory holds the whole tensor meanwhile. DataError when the bytes are outside of the
  /// tensor or the file became shorter.
  void read(const TensorEntry& entry, std::span<std::byte> out, std::uint64_t begin = 0) const;

  /// Replaces the entries by other tensors on the same data: with other names, fewer of them, axes in another order.
  /// DataError when two have one name.
  void set_entries(std::vector<TensorEntry> entries);

 protected:
  TensorFile(const std::string& path, const char* format);
  [[nodiscard]] const InputFile& file() const;
  void set_metadata(std::map<std::string, std::string> metadata);
  /// Called at the end of a constructor. DataError when the file's size has changed since it was opened.
  void require_same_size() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Opens a file by its first bytes: a file of torch.save as a TorchFile, any other as a SafetensorsFile.
[[nodiscard]] TensorFile open_tensor_file(const std::string& path);

/// Checks a tensor's name, for all formats: 1 to 1024 bytes, UTF-8 without control characters. DataError, beginning
/// with `what`, otherwise.
void require_tensor_name(const std::string& what, const std::string& name);
inline constexpr std::size_t kMostTensors = 100'000;
inline constexpr std::size_t kMostTensorDims = 32;

}  // namespace lockstep
