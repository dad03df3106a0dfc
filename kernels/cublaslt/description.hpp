#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <lockstep/kernels/matmul.hpp>

/// The part of the cuBLASLt provider that does not call cuBLASLt: the layouts of the matrices for cuBLASLt, and the
/// text of a choice. The functions are pure and exist in every build.
namespace lockstep::ops::cublaslt {

/// A column-major matrix: element (i, j) of product p lies at p * stride + j * leading + i.
struct ColumnMajor {
  std::int64_t rows, columns, leading, stride;
};

/// The column-major product out = op(first) op(second) that computes the row-major product c = op(a) op(b) of a
/// MatmulDesc. Memory that holds a matrix in row-major order holds the transposed matrix in column-major order. So out
/// is the memory of c, first is the memory of b, second is the memory of a, and nothing is copied. A bias has n
/// entries, one for each row of out.
struct Description {
  std::int64_t products;
  bool transpose_first, transpose_second;
  ColumnMajor first, second, out;
};
[[nodiscard]] Description describe(const MatmulDesc& desc);

/// The work on c after the sums of a product: adding a bias and applying a function. cuBLASLt adds only a bias of c's
/// type. So an f32 bias for a 16-bit c is first rounded to c's type; the rounded bias is in the workspace.
struct Epilogue {
  bool bias = false;         ///< true: a bias is added before the function
  bool rounds_bias = false;  ///< true: the bias is first rounded to the 16-bit type of c
  enum class Function : unsigned char { none, relu, gelu } function = Function::none;

  bool operator==(const Epilogue&) const = default;
};
/// Returns the epilogue of a product. Throws UnsupportedError for an activation that cuBLASLt lacks. cuBLASLt has relu,
/// and a GELU that is gelu_tanh.
[[nodiscard]] Epilogue epilogue_of(const MatmulDesc& desc);

/// An algorithm of cuBLASLt with its settings (CUBLASLT_ALGO_CONFIG_*), from which the same algorithm can be made
/// again. If cuBLASLt would make another algorithm from these settings, Algorithm also holds the algorithm's own bytes
/// (cublasLtMatmulAlgo_t), which only the same version of cuBLASLt accepts.
struct Algorithm {
  std::int32_t id = 0;
  std::uint32_t tile = 0;
  std::uint32_t stages = 0;
  std::int32_t split_k = 1;
  std::uint32_t reduction = 0;
  std::uint32_t swizzle = 0;
  std::uint32_t custom = 0;
  std::uint16_t inner_shape = 0;
  std::uint16_t cluster_shape = 0;
  using Bytes = std::array<std::uint64_t, 8>;
  std::optional<Bytes> bytes{};

  bool operator==(const Algorithm&) const = default;
};

/// Returns a text such as "cublaslt:66-20-36-1-0-0-0-0-5": the settings in the order of the members of Algorithm. If
/// the algorithm has bytes, ':' and 128 hexadecimal digits follow.
[[nodiscard]] std::string choice_text(const Algorithm& algorithm);
/// Returns the algorithm that a text of choice_text() names. Throws UsageError for any other text.
[[nodiscard]] Algorithm parse_choice(std::string_view choice);

}  // namespace lockstep::ops::cublaslt
