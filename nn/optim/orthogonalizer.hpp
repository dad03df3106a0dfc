#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <lockstep/kernels/matmul.hpp>
#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/tensor/buffer.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::nn {

/// Replaces matrices M = U S V^T by approximately U V^T, for Muon (kernels/muon.hpp). M is first scaled to the
/// Frobenius norm 1. Then five Newton-Schulz iterations X = (a I + b A + c A A) X with A = X X^T bring the singular
/// values near 1. For a matrix with more rows than columns, the iteration is X = X (a I + b A + c A A) with A = X^T X.
/// Matrices of one shape are computed together, as batches.
class Orthogonalizer {
 public:
  /// A row-major matrix (rows, columns) that begins at element `offset` of an arena.
  struct Matrix {
    std::int64_t offset = 0;
    std::int64_t rows = 1;
    std::int64_t columns = 1;
  };

  /// Plans the products and allocates their memory. `arena` is the matrices' type: f32, on the host also f64. `compute`
  /// is the products' type: equal to `arena`, bf16 or f16. Throws UnsupportedError if no deterministic product is
  /// available.
  Orthogonalizer(Context& context, const std::vector<Matrix>& matrices, DType arena, DType compute);
  Orthogonalizer(Orthogonalizer&&) noexcept;
  Orthogonalizer& operator=(Orthogonalizer&&) noexcept;
  ~Orthogonalizer();

  /// Enqueues the replacement of all matrices in the arena, a contiguous vector that must hold finite numbers. A matrix
  /// of zeros stays zero. Allocates nothing and does not wait. The result is deterministic; on the host its bits do not
  /// depend on the number of threads.
  void run(Context& context, const TensorView& arena);
  [[nodiscard]] std::size_t bytes() const;  ///< number of bytes that the constructor has allocated

 private:
  struct Group;
  std::vector<Group> groups_;
  DType compute_;
  Buffer memory_;
};

}  // namespace lockstep::nn
