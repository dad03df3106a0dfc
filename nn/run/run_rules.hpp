#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::nn {

/// The inputs that decide batch, learning rate and workers of a run. The caller has counted the processors.
struct RunRequest {
  int ranks = 1;
  std::optional<std::int64_t> global_batch{};    ///< samples per update, over all micro-batches of all ranks
  std::optional<std::int64_t> batch_per_rank{};  ///< samples per micro-batch of one rank
  std::int64_t accumulate = 1;                   ///< micro-batches per update; their gradients are added
  std::int64_t virtual_ranks = 0;                ///< TrainStepOptions::virtual_ranks; 0: no virtual ranks

  std::optional<double> learning_rate{};  ///< learning rate that the user gives; empty: the rule decides
  double base_learning_rate = 0.1;        ///< learning rate by the rule if a global batch has reference_batch samples
  std::int64_t reference_batch = 256;     ///< 0: the rule gives base_learning_rate for any batch

  std::optional<int> workers{};  ///< reading threads per rank that the user gives; empty: the rule decides
  int processors = 1;            ///< number of processors to which this rank is bound
  int sharers = 1;               ///< number of ranks bound to the same processors, including this rank
};

/// The results of run_rules(). The rules and their sources are:
///
///   batch     B = samples of a micro-batch * micro-batches * ranks. Gradients are sums of 1 / B over samples, so that
///             ranks and micro-batches do not change the meaning of an update. For a smaller last batch, B is the
///             number of samples in that batch.
///   rate      base * B / reference: linear in the global batch (Goyal et al. 2017, "Accurate, Large Minibatch SGD"),
///             so the rate does not depend on how many ranks share the batch. It needs warm-up: warmup_steps().
///   workers   min(8, P - 1), at least 1, where P = processors / sharers: one thread computes, all others may read.
///             There are 0 workers if the sharers outnumber the processors.
struct RunRules {
  int ranks = 1;
  std::int64_t global_batch = 0;
  std::int64_t accumulate = 1;
  std::int64_t virtual_ranks = 0;
  double learning_rate = 0;
  int workers = 0;
  int prefetch = 3;  ///< number of batches that are ready or in preparation; workers share the reading of each batch
  int processors = 1;
  int sharers = 1;

  /// Describes the batch: "7 x 8 x 10 = 560 (a micro-batch x micro-batches x ranks)", "64 x 2 = 128 (a rank x ranks)";
  /// uneven shares: "13 over 3 ranks: 1 of 5, 2 of 4", "13 over 2 ranks: 1 of 7, 1 of 6; in 2 micro-batches of 3 to 4".
  /// `rank` is the word for a rank; programs without ranks give another. With virtual ranks the text has their shares.
  [[nodiscard]] std::string batch_text(std::string_view rank = "rank") const;
};

/// Computes the rules for `request`. UsageError if no batch is given; if both batches are given and disagree; if a
/// micro-batch of a rank has less than one sample; or if a value is out of range. With virtual ranks, their number must
/// be a power of two and a multiple of the ranks, each virtual rank must have a sample, and `accumulate` must be 1.
[[nodiscard]] RunRules run_rules(const RunRequest& request);

/// Returns the number of warm-up steps: a twentieth of total_steps, close to the 5 of 90 epochs of Goyal et al. 2017.
[[nodiscard]] std::int64_t warmup_steps(std::int64_t total_steps);

/// Returns at most two warnings for the user. One is about a batch above 8,192 without warm-up and without the
/// per-layer rates of LARS: linear scaling holds up to 8,192 (Goyal et al. 2017); for larger batches see You et al.
/// 2017, "Large Batch Training of Convolutional Networks". The other is about more reading threads than processors.
[[nodiscard]] std::vector<std::string> warnings(const RunRules& rules, bool layerwise_rates, std::int64_t warmup_steps);

}  // namespace lockstep::nn
