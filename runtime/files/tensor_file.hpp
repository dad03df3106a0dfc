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

/// Description of one tensor in a file.
struct TensorEntry {
  std::string name;
  std::string dtype;                ///< name of the type in safetensors files: "F32", "BF16", "BOOL", ...
  std::vector<std::int64_t> shape;  ///< extents; empty for a scalar
  /// Strides in the file, in elements; empty if the tensor is row-major without gaps.
  std::vector<std::int64_t> strides{};
  std::uint64_t offset = 0;  ///< offset of the tensor's first element from the start of the file
  std::uint64_t bytes = 0;   ///< bytes of all elements

  [[nodiscard]] std::optional<DType> type() const;  ///< `dtype` as a DType; nullopt if DType lacks the type
};

/// A file of named tensors, opened for reading. The subclasses SafetensorsFile (safetensors.hpp) and TorchFile
/// (torch_file.hpp) read and check their formats. Can only be moved. Reading is thread-safe.
class TensorFile {
 public:
  ~TensorFile();
  TensorFile(TensorFile&&) noexcept;
  TensorFile& operator=(TensorFile&&) noexcept;

  [[nodiscard]] const std::string& path() const;
  [[nodiscard]] const char* format() const;  ///< "safetensors" or "torch"
  [[nodiscard]] const std::vector<TensorEntry>& entries() const;
  [[nodiscard]] const TensorEntry* find(const std::string& name) const;  ///< returns nullptr if no tensor has this name
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const;

  /// Reads bytes [begin, begin + out.size()) of a tensor as if its elements were row-major, whatever their strides in
  /// the file. For a tensor with strides, host memory holds the whole tensor during the call. Throws DataError if the
  /// bytes are outside of the tensor, or if the file became shorter.
  void read(const TensorEntry& entry, std::span<std::byte> out, std::uint64_t begin = 0) const;

  /// Replaces the entries by other descriptions of the same data: with other names, fewer entries, or axes in another
  /// order. Throws DataError if two entries have the same name.
  void set_entries(std::vector<TensorEntry> entries);

 protected:
  TensorFile(const std::string& path, const char* format);
  [[nodiscard]] const InputFile& file() const;
  void set_metadata(std::map<std::string, std::string> metadata);
  /// Throws DataError if the file's size has changed since it was opened. Constructors call this at their end.
  void require_same_size() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Opens a file of torch.save, which is detected by its first bytes, as a TorchFile, and any other file as a
/// SafetensorsFile.
[[nodiscard]] TensorFile open_tensor_file(const std::string& path);

/// Checks a tensor's name, for all formats: 1 to 1024 bytes, UTF-8 without control characters. Otherwise throws a
/// DataError whose text begins with `what`.
void require_tensor_name(const std::string& what, const std::string& name);
inline constexpr std::size_t kMostTensors = 100'000;
inline constexpr std::size_t kMostTensorDims = 32;

}  // namespace lockstep
