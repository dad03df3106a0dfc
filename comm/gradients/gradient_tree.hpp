#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::comm {

/// Adds the gradients of several micro-batches in a fixed binary tree: neighbours in pairs, then pairs of pairs, each
/// sum rounded to the type of the arena.
///
///   leaf    0   1   2   3      levels:  0 holds a leaf that waits for its neighbour, 1 a sum of two, 2 of four, ...
///            \ /     \ /
///             +       +
///              \     /
///               +---+          in the arena, after the last leaf
///
/// Several ranks whose numbers of leaves are equal powers of two, and whose sums SumOrder::tree adds, form one larger
/// tree: its bits do not depend on how many ranks share the leaves.
class GradientTree {
 public:
  /// arena: where each leaf's gradients are written, contiguous f32 or f64; it outlives the tree. leaves: a power of
  /// two (UsageError). Allocates log2(leaves) more arenas.
  GradientTree(Context& context, const TensorView& arena, std::int64_t leaves);
  /// The arena holds the next leaf, written on the context's stream. Enqueues its sums, and then the arena may be
  /// overwritten. After the last leaf the arena holds the sum of all, and the next call begins anew.
  void add(Context& context);
  void restart() { next_ = 0; }  ///< forgets the leaves since the last sum of all
  [[nodiscard]] std::int64_t arenas() const { return static_cast<std::int64_t>(levels_.size()); }  ///< of its own
  [[nodiscard]] std::size_t bytes() const { return levels_.size() * arena_.bytes(); }              ///< of these arenas

 private:
  TensorView arena_;
  std::int64_t leaves_;
  std::int64_t next_ = 0;
  std::vector<Tensor> levels_;  ///< level k: the sum of 2^k leaves that waits for the next such sum
};

}  // namespace lockstep::comm
