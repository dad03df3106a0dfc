#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::comm {

/// Adds the gradients of several micro-batches, the leaves, in a fixed binary tree: neighbours in pairs, then pairs of
/// pairs. Each sum is rounded to the type of the arena.
///
///   leaf    0   1   2   3      levels:  0 holds a leaf that waits for its neighbour, 1 a sum of two, 2 of four, ...
///            \ /     \ /
///             +       +
///              \     /
///               +---+          the sum of all, in the arena after the last leaf
///
/// SumOrder::tree joins the trees of several ranks to one larger tree. Each rank must have the same number of leaves, a
/// power of two. Then the bits of the sum do not depend on how many ranks share the leaves.
class GradientTree {
 public:
  /// Takes `arena`, the memory into which every leaf's gradients are written: contiguous, f32 or f64. `arena` must
  /// outlive the tree. Allocates log2(leaves) more arenas. Throws UsageError unless `leaves` is a power of two.
  GradientTree(Context& context, const TensorView& arena, std::int64_t leaves);
  /// Adds the next leaf, which the context's stream has written into the arena. Later work on that stream may overwrite
  /// the arena. After the last leaf, the arena holds the sum of all leaves, and the next call begins a new tree.
  void add(Context& context);
  void restart() { next_ = 0; }  ///< drops the leaves that were added after the last complete sum
  /// Returns the number of arenas that the tree has allocated.
  [[nodiscard]] std::int64_t arenas() const { return static_cast<std::int64_t>(levels_.size()); }
  [[nodiscard]] std::size_t bytes() const { return levels_.size() * arena_.bytes(); }  ///< size of the allocated arenas

 private:
  TensorView arena_;
  std::int64_t leaves_;
  std::int64_t next_ = 0;
  std::vector<Tensor> levels_;  ///< level k holds a sum of 2^k leaves until it is added to the next such sum
};

}  // namespace lockstep::comm
