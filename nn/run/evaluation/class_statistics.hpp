#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <lockstep/nn/run/evaluation/class_report.hpp>
#include <lockstep/nn/run/observer.hpp>
#include <lockstep/nn/run/trainer.hpp>
#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/stream/stream.hpp>
#include <lockstep/runtime/tensor/buffer.hpp>

namespace lockstep::nn {

/// Makes the ClassReport of each evaluation of a classifier. After each micro-batch, the outputs are copied to the
/// host. The host updates the counts while the device computes the next micro-batches. The host waits for a copy only
/// if the copy is kBehind micro-batches old. After an evaluation, report() adds up the counts of all ranks.
///
/// The object must be an observer on every rank. The first evaluation allocates the memory for the copies, which is
/// page-locked for a GPU. `trainer` and `ranks` must outlive this object.
class ClassStatistics final : public RunObserver {
 public:
  /// Returns true for a classifier with one label per sample and 2 to ClassReport::kMostClasses classes.
  [[nodiscard]] static bool can_watch(const Trainer& trainer);

  /// `ranks` must be the ranks of `trainer`. `most_worst` becomes ClassReport::most_worst.
  ClassStatistics(Trainer& trainer, const Ranks& ranks, std::size_t most_worst);
  ~ClassStatistics() override;  ///< waits for unfinished copies

  void on_evaluation_begin(const EvaluationBegin& event) override;
  void on_evaluation_batch(const EvaluationBatch& event) override;
  void on_evaluation_end(const EvaluationEvent& event) override;  ///< calls report()

  /// Returns the report on the samples of all ranks since the last evaluation began. The first call after an evaluation
  /// is collective. on_evaluation_end() makes this call on every rank, unless a metric of metrics() made it earlier.
  /// Before the first evaluation, the report has no samples.
  [[nodiscard]] const ClassReport& report();
  /// Returns two metrics for RunOptions::metrics, "calibration_error" and "worst_class_accuracy". Both call report().
  [[nodiscard]] std::vector<RunMetric> metrics();

 private:
  static constexpr std::size_t kBehind = 3;
  /// A micro-batch whose outputs are being copied to the host.
  struct Slot {
    Buffer outputs;
    std::optional<Event> copied;
    bool waiting = false;
    std::int64_t rows = 0;
    DType dtype = DType::f32;
    std::vector<std::int32_t> labels;
    std::vector<std::int64_t> ids;
  };
  void count(Slot& slot);
  void count_all();
  void reduce();

  Trainer& trainer_;
  Ranks ranks_;
  int classes_;
  std::size_t most_worst_;
  CpuContext host_;
  Stream inline_stream_;
  std::array<Slot, kBehind> slots_;
  std::size_t next_ = 0;  ///< index of the oldest slot, which is used next
  ClassReport report_;
  bool reduced_ = false;
  std::vector<double> logits_;
};

}  // namespace lockstep::nn
