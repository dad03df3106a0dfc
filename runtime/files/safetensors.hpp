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

/// The safetensors format (github.com/huggingface/safetensors): 8 bytes header length (little-endian), a JSON header,
/// and the tensors, row-major, little-endian, without gaps.

/// Returns the name of a type in safetensors files: "F32" for f32 and so on.
[[nodiscard]] const char* safetensors_dtype(DType dtype);

/// A file opened for reading. The constructor trusts nothing in the header and checks all of it: the header has at most
/// 16 MiB (a header costs many times its size in memory) and lies inside the file; UTF-8 and JSON are valid, no key
/// occurs twice, dtypes are known; sizes do not overflow and agree with dtype and shape; tensors follow each other
/// without gaps or overlap, with nothing after the last; names have 1 to 1024 bytes without control characters; at most
/// 32 dimensions and 100,000 tensors. Any violation is a DataError with path, tensor and what was expected. Entries are
/// in the order of the data.
class SafetensorsFile : public TensorFile {
 public:
  explicit SafetensorsFile(const std::string& path);
};

/// A tensor to write: its bytes, or a function that writes them piece by piece.
struct SafetensorsTensor {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> data;  ///< row-major; not used when `fill` is set
  /// Writes a whole number of elements to `out`, from element `first` on. Called in order.
  std::function<void(std::int64_t first, std::span<std::byte> out)> fill;
};

/// Writes a new file, durable when the call returns. Equal tensors and metadata give equal bytes: the order is that of
/// the reference implementation (larger and wider types first, then by name), and spaces pad the header so that the
/// data begin at a multiple of 8. DataError for a name that occurs twice or that the reader would refuse, for data that
/// do not match the shape, and when writing fails (the file is then deleted).
void write_safetensors(const std::string& path, std::span<const SafetensorsTensor> tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace lockstep
