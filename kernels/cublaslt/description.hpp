#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <lockstep/kernels/matmul.hpp>

/// The decisions of the cuBLASLt provider that do not need the library: matrices in cuBLASLt's terms, and the text of a
/// choice. Pure functions, in every build.
namespace lockstep::ops::cublaslt {

/// A column-major matrix: element (i, j) of product p lies at p * stride + j * leading + i.
struct ColumnMajor {
  std::int64_t rows, columns, leading, stride;
};

/// out = op(first) op(second), column-major. A row-major matrix is its transpose in column-major order: so out is c
/// transposed, first is b, second is a, and no memory is moved. A bias of n entries runs along out's rows.
struct Description {
  std::int64_t products;
  bool transpose_first, transpose_second;
  ColumnMajor first, second, out;
};
[[nodiscard]] Description describe(const MatmulDesc& desc);

/// What the same pass does after the sums. cuBLASLt adds only a bias of the result's type: an f32 bias beside a 16-bit
/// c is first rounded to c's type, in the workspace.
struct Epilogue {
  bool bias = false;         ///< added first
  bool rounds_bias = false;  ///< c is a 16-bit type
  enum class Function : unsigned char { none, relu, gelu } function = Function::none;

  bool operator==(const Epilogue&) const = default;
};
/// UnsupportedError for an activation that cuBLASLt lacks: it has relu, and its GELU is gelu_tanh.
[[nodiscard]] Epilogue epilogue_of(const MatmulDesc& desc);

/// An algorithm of cuBLASLt with its settings (CUBLASLT_ALGO_CONFIG_*), from which the same algorithm can be made
/// again; where they would make another one, with its own bytes (cublasLtMatmulAlgo_t), which the same version takes.
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

/// "cublaslt:66-20-36-1-0-0-0-0-5": the settings in the order above, with ':' and 128 hexadecimal digits where there
/// are bytes.
[[nodiscard]] std::string choice_text(const Algorithm& algorithm);
/// Inverse of choice_text(); UsageError for any other text.
[[nodiscard]] Algorithm parse_choice(std::string_view choice);

}  // namespace lockstep::ops::cublaslt
