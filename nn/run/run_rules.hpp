#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::nn {

/// The inputs that decide batch, learning rate and workers of a run. Pure data: the caller has asked the machine.
struct RunRequest {
  int ranks = 1;
  std::optional<std::int64_t> global_batch{};    ///< samples per update: of all micro-batches of all ranks
  std::optional<std::int64_t> batch_per_rank{};  ///< samples per micro-batch of one rank
  std::int64_t accumulate = 1;                   ///< micro-batches per update, whose gradients are added
  std::int64_t virtual_ranks = 0;                ///< TrainStepOptions::virtual_ranks; 0: none

  std::optional<double> learning_rate{};  ///< as given; none: the rule
  double base_learning_rate = 0.1;        ///< of the rule, for a global batch of reference_batch samples
  std::int64_t reference_batch = 256;     ///< 0: the rule gives the base for any batch

  std::optional<int> workers{};  ///< reading threads per rank, as given; none: the rule
  int processors = 1;            ///< that this rank is bound to
  int sharers = 1;               ///< ranks bound to these processors, this one included
};

/// The results. The rules, and their sources:
///
///   batch     B = samples of a micro-batch * micro-batches * ranks. Gradients are sums of 1 / B over samples, so that
///             neither ranks nor micro-batches change what an update means, nor a last batch that is smaller (it counts
///             its own).
///   rate      base * B / reference: linear in the global batch (Goyal et al. 2017, "Accurate, Large Minibatch SGD"),
///             and so the same for any number of ranks that share it. It needs warm-up: warmup_steps().
///   workers   min(8, processors of this rank alone - 1), at least 1: beside one computing thread all may read. None
///             where ranks outnumber processors.
struct RunRules {
  int ranks = 1;
  std::int64_t global_batch = 0;
  std::int64_t accumulate = 1;
  std::int64_t virtual_ranks = 0;
  double learning_rate = 0;
  int workers = 0;
  int prefetch = 3;  ///< batches ready or in preparation; workers share the reading of each
  int processors = 1;
  int sharers = 1;

  /// "7 x 8 x 10 = 560 (a micro-batch x micro-batches x ranks)", "64 x 2 = 128 (a rank x ranks)"; uneven shares are
  /// listed: "13 over 3 ranks: 1 of 5, 2 of 4", "13 over 2 ranks: 1 of 7, 1 of 6; in 2 micro-batches of 3 to 4". rank:
  /// another word, for programs that have no ranks. With virtual ranks these are listed.
  [[nodiscard]] std::string batch_text(std::string_view rank = "rank") const;
};

/// UsageError when neither batch is given, or both and they disagree; when a micro-batch of a rank has less than one
/// sample; and for values out of range. Virtual ranks are a power of two that the ranks divide, each with a sample, and
/// there is one micro-batch.
[[nodiscard]] RunRules run_rules(const RunRequest& request);

/// A twentieth of the run, as the 5 of 90 epochs of Goyal et al. 2017.
[[nodiscard]] std::int64_t warmup_steps(std::int64_t total_steps);

/// Warnings for the user, one per line: a batch above 8,192 without warm-up and without the per-layer rates of LARS
/// (linear scaling holds up to there, Goyal et al. 2017; beyond it see You et al. 2017, "Large Batch Training of
/// Convolutional Networks"); more workers than processors.
[[nodiscard]] std::vector<std::string> warnings(const RunRules& rules, bool layerwise_rates, std::int64_t warmup_steps);

}  // namespace lockstep::nn
