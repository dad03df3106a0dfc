#include <lockstep/comm/gradients/gradient_tree.hpp>

#include <bit>

#include <lockstep/kernels/add.hpp>
#include <lockstep/kernels/strided_copy.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::comm {

GradientTree::GradientTree(Context& context, const TensorView& arena, std::int64_t leaves)
    : arena_(arena), leaves_(leaves) {
  require<UsageError>(leaves >= 1 && std::has_single_bit(static_cast<std::uint64_t>(leaves)),
                      "gradient tree: the number of leaves is ", leaves, ", expected a power of two");
  for (std::int64_t sums = 1; sums < leaves; sums *= 2) {
    levels_.push_back(Tensor::empty(context, arena.shape, arena.dtype));
  }
}

void GradientTree::add(Context& context) {
  const auto leaf = static_cast<std::uint64_t>(next_);
  const bool last = next_ + 1 == leaves_;
  next_ = last ? 0 : next_ + 1;
  // The levels work like a binary counter: each trailing 1 bit of the leaf's number is a sum that waits for this leaf.
  const auto waiting = static_cast<std::size_t>(std::countr_one(leaf));
  for (std::size_t level = 0; level < waiting; ++level) {
    const bool waits = level + 1 == waiting && !last;
    ops::add(context, levels_[level].view(), arena_, waits ? levels_[waiting].view() : arena_);
  }
  if (waiting == 0 && !last) {
    ops::strided_copy(context, arena_, levels_.front());
  }
}

}  // namespace lockstep::comm
