#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <lockstep/kernels/matmul.hpp>

/// What the cuBLASLt provider decides without the library: matrices as cuBLASLt sees them, and the text of a choice.
/// Pure functions, in every build.
namespace lockstep::ops::cublaslt {

/// A column-major matrix: element (i, j) of product p lies at p * stride + j * leading + i.
struct ColumnMajor {
  std::int64_t rows, columns, leading, stride;
};

/// out = op(first) op(second), column-major. A row-major matrix is the transposed one column-major, so that out is the
/// transposed c, first is b and second is a: no memory is moved. A bias of n entries is one along out's rows.
struct Description {
  std::int64_t products;
  bool transpose_first, transpose_second;
  ColumnMajor first, second, out;
};
[[nodiscard]] Description describe(const MatmulDesc& desc);

/// What follows the sums in the same pass. cuBLASLt adds a bias of the result's type only: an f32 bias beside a 16-bit
/// c is rounded to c's type in the workspace first.
struct Epilogue {
  bool bias = false;         ///< added first
  bool rounds_bias = false;  ///< c is of 16 bits
  enum class Function : unsigned char { none, relu, gelu } function = Function::none;

  bool operator==(const Epilogue&) const = default;
};
/// UnsupportedError for an activation that cuBLASLt has not: it has relu, and what it calls GELU is gelu_tanh.
[[nodiscard]] Epilogue epilogue_of(const MatmulDesc& desc);

/// The algorithm of cuBLASLt and its settings: CUBLASLT_ALGO_CONFIG_*, by which the same one can be made again.
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

  bool operator==(const Algorithm&) const = default;
};

/// "cublaslt:66-20-36-1-0-0-0-0-5": the settings in the order above.
[[nodiscard]] std::string choice_text(const Algorithm& algorithm);
/// Its inverse; UsageError for any other text.
[[nodiscard]] Algorithm parse_choice(std::string_view choice);

}  // namespace lockstep::ops::cublaslt
