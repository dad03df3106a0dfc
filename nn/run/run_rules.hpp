#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::nn {

/// The inputs that decide batch, learning rate and workers of a run. The caller must count the processors.
struct RunRequest {
  int ranks = 1;
  std::optional<std::int64_t> global_batch{};    ///< number of samples per update, over all micro-batches of all ranks
  std::optional<std::int64_t> batch_per_rank{};  ///< number of samples per micro-batch of one rank
  std::int64_t accumulate = 1;                   ///< number of micro-batches per update, whose gradients are added
  std::int64_t virtual_ranks = 0;                ///< TrainStepOptions::virtual_ranks; 0: no virtual ranks

  std::optional<double> learning_rate{};  ///< learning rate that the user has set; empty: the rule decides
  double base_learning_rate = 0.1;        ///< learning rate for a global batch of reference_batch samples
  std::int64_t reference_batch = 256;     ///< global batch to which base_learning_rate applies; 0: to any batch

  std::optional<int> workers{};  ///< number of reading threads per rank that the user has set; empty: the rule decides
  int processors = 1;            ///< number of processors to which this rank is bound
  int sharers = 1;               ///< number of ranks bound to the same processors, including this rank
};

/// The results of run_rules(). The rules and their sources are:
///
///   batch     B = samples of a micro-batch * micro-batches * ranks. The gradient is the mean over these B
///             samples, however they are divided over ranks and micro-batches. For a smaller last batch, B is the
///             number of samples in that batch.
///   rate      base * B / reference: linear in the global batch (Goyal et al. 2017, "Accurate, Large Minibatch SGD"),
///             so the rate does not depend on how many ranks share the batch. The rule needs warm-up: warmup_steps().
///   workers   min(8, P - 1), at least 1, where P = processors / sharers: one thread computes, all others may read.
///             There are 0 workers if there are more sharers than processors.
struct RunRules {
  int ranks = 1;
  std::int64_t global_batch = 0;
  std::int64_t accumulate = 1;
  std::int64_t virtual_ranks = 0;
  double learning_rate = 0;
  int workers = 0;
  int prefetch = 3;  ///< number of batches that are ready or being read; all workers read parts of one batch
  int processors = 1;
  int sharers = 1;

  /// Describes the batch, for example "7 x 8 x 10 = 560 (a micro-batch x micro-batches x ranks)" or "64 x 2 = 128 (a
  /// rank x ranks)". Uneven shares become "13 over 3 ranks: 1 of 5, 2 of 4" or "13 over 2 ranks: 1 of 7, 1 of 6; in 2
  /// micro-batches of 3 to 4". `rank` is the word that the text uses for a rank. With virtual ranks, the text describes
  /// the shares of virtual ranks.
  [[nodiscard]] std::string batch_text(std::string_view rank = "rank") const;
};

/// Computes the rules for `request`. Throws UsageError in these cases:
/// - no batch is given, or global_batch and batch_per_rank are both given and disagree;
/// - a micro-batch of a rank has less than one sample;
/// - a value is out of range;
/// - the number of virtual ranks is not a power of two, is not a multiple of the ranks, or exceeds the global batch;
/// - there are virtual ranks, and `accumulate` is not 1.
[[nodiscard]] RunRules run_rules(const RunRequest& request);

/// Returns the number of warm-up steps: a twentieth of total_steps. Goyal et al. 2017 use about the same share, 5 of 90
/// epochs.
[[nodiscard]] std::int64_t warmup_steps(std::int64_t total_steps);

/// Returns up to two warnings for the user. One warns of a batch above 8,192 without warm-up and without the per-layer
/// rates of LARS. Linear scaling of the rate works only up to 8,192 (Goyal et al. 2017); for larger batches see You et
/// al. 2017, "Large Batch Training of Convolutional Networks". The other warns of more reading threads than processors.
[[nodiscard]] std::vector<std::string> warnings(const RunRules& rules, bool layerwise_rates, std::int64_t warmup_steps);

}  // namespace lockstep::nn
