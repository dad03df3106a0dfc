#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::comm {

/// Adds the gradients of several micro-batches in a fixed binary tree: neighbours in pairs, then pairs of pairs. Each
/// sum is rounded to the type of the arena.
///
///   leaf    0   1   2   3      levels:  0 holds a leaf that waits for its neighbour, 1 a sum of two, 2 of four, ...
///            \ /     \ /
///             +       +
///              \     /
///               +---+          the sum of all, in the arena after the last leaf
///
/// SumOrder::tree joins the sums of several ranks to one larger tree; each rank must have the same power of two of
/// leaves. So the bits do not depend on how many ranks share the leaves.
class GradientTree {
 public:
  /// `arena` is the memory of each leaf's gradients, contiguous f32 or f64; it must outlive the tree. `leaves` is a
  /// power of two (UsageError). Allocates log2(leaves) more arenas.
  GradientTree(Context& context, const TensorView& arena, std::int64_t leaves);
  /// Adds the next leaf, which the context's stream has written into the arena. Enqueues the sums; later work may
  /// overwrite the arena. After the last leaf the arena holds the sum of all, and the next call begins a new tree.
  void add(Context& context);
  void restart() { next_ = 0; }  ///< forgets the leaves since the last complete sum
  [[nodiscard]] std::int64_t arenas() const { return static_cast<std::int64_t>(levels_.size()); }  ///< own arenas
  [[nodiscard]] std::size_t bytes() const { return levels_.size() * arena_.bytes(); }  ///< size of the own arenas

 private:
  TensorView arena_;
  std::int64_t leaves_;
  std::int64_t next_ = 0;
  std::vector<Tensor> levels_;  ///< level k holds the sum of 2^k leaves that waits for the next such sum
};

}  // namespace lockstep::comm
