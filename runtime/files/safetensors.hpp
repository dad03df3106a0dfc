#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <lockstep/runtime/base/dtype.hpp>
#include <lockstep/runtime/files/tensor_file.hpp>

namespace lockstep {

/// The safetensors format (github.com/huggingface/safetensors): 8 bytes with the header's length (little-endian), a
/// JSON header, then the tensors. Tensors are row-major and little-endian, without gaps.

/// Returns the name of a type in safetensors files, for example "F32" for f32.
[[nodiscard]] const char* safetensors_dtype(DType dtype);

/// A safetensors file, opened for reading. The constructor trusts nothing in the header and checks all of it:
/// - The header is inside the file. It has at most 16 MiB, because a parsed header takes many times its size in memory.
/// - UTF-8 and JSON are valid, no key occurs twice, dtypes are known.
/// - Sizes do not overflow and agree with dtype and shape.
/// - Tensors follow each other without gaps or overlap, and nothing follows the last.
/// - Names have 1 to 1024 bytes without control characters. There are at most 32 dimensions and 100,000 tensors.
/// Any violation is a DataError with path, tensor and expectation. Entries are in the order of the data.
class SafetensorsFile : public TensorFile {
 public:
  explicit SafetensorsFile(const std::string& path);
};

/// A tensor to write. The elements are in `data`; or, if `fill` is set, `fill` supplies the elements in pieces.
struct SafetensorsTensor {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> data;  ///< row-major elements; not used if `fill` is set
  /// Fills `out` with the elements from index `first` on. `out` holds whole elements. Calls are in the order of
  /// `first`.
  std::function<void(std::int64_t first, std::span<std::byte> out)> fill;
};

/// Writes a new file; the file is durable when the call returns. Equal tensors and metadata give equal bytes. Tensors
/// are in the order of the reference implementation: by type, wider types first, and tensors of one type by name.
/// Spaces pad the header so that the data begin at a multiple of 8. Throws DataError for a name that occurs twice, for
/// a name that SafetensorsFile refuses, and for data that do not match the shape. If writing fails, throws DataError
/// and deletes the file.
void write_safetensors(const std::string& path, std::span<const SafetensorsTensor> tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace lockstep
