#pragma once

#include <algorithm>
#include <optional>

#include <lockstep/comm/gradients/gradient_tree.hpp>
#include <lockstep/nn/model/parameter_set.hpp>
#include <lockstep/nn/plan/plan.hpp>

namespace lockstep::nn {

/// The virtual ranks of this rank. Each virtual rank computes one micro-batch of a step, with its own running
/// statistics. A binary tree adds the gradients of all virtual ranks in a fixed order.
class VirtualRanks {
 public:
  explicit VirtualRanks(std::int64_t count) : count_(count) {}  ///< 0: there are no virtual ranks

  [[nodiscard]] std::int64_t count() const { return count_; }
  /// Returns the number of rows of running statistics and of metric sums on this rank: one for each virtual rank, or 1
  /// without virtual ranks.
  [[nodiscard]] std::int64_t rows() const { return std::max<std::int64_t>(count_, 1); }
  [[nodiscard]] std::int64_t row_of(std::int64_t microbatch) const { return count_ > 0 ? microbatch : 0; }

  /// Allocates the arenas of the tree. Must be called before the first run(). The parameters must outlive the tree.
  void allocate(Context& context, const ParameterSet& parameters) {
    if (count_ > 0) {
      tree_.emplace(context, parameters.gradients_and_weight_sum(), count_);
    }
  }
  /// Enqueues micro-batch number `number` of a step. `plan` must read this micro-batch (Plan::use()). Allocates no
  /// memory.
  void run(Context& context, const ParameterSet& parameters, Plan& plan, std::int64_t number,
           const CallRecord& record) {
    parameters.take_statistics(context, number);
    plan.run(context, {}, record);
    parameters.keep_statistics(context, number);
    tree_->add(context);
  }
  /// Discards the gradients of a step that ends without an update.
  void restart() {
    if (tree_) {
      tree_->restart();
    }
  }
  [[nodiscard]] std::int64_t tree_arenas() const { return tree_ ? tree_->arenas() : 0; }
  [[nodiscard]] std::size_t tree_bytes() const { return tree_ ? tree_->bytes() : 0; }

 private:
  std::int64_t count_;
  std::optional<comm::GradientTree> tree_;
};

}  // namespace lockstep::nn
