#include <lockstep/nn/run/predicted_step.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <lockstep/nn/run/timeline.hpp>
#include <lockstep/runtime/base/units.hpp>
#include <lockstep/runtime/stream/span_recorder.hpp>

namespace lockstep::nn {
namespace {

/// Returns the bytes that an optimizer update of this rank reads and writes. For each parameter, the update reads the
/// gradient, reads and writes the value and each optimizer state, and writes the 16-bit weight. If the norm of all
/// gradients is computed, the gradient is read twice. A moving average of the weights is one of the states; the pass
/// that updates the moving average reads the value once more.
double update_bytes(const ParameterSet& parameters, const OptimizerOptions& options) {
  const bool norm = options.clip_norm > 0 || options.skip_non_finite || options.loss_scale.scales();
  const double accesses = 3.0 + 2.0 * static_cast<double>(parameters.state_names().size()) + (norm ? 1.0 : 0.0) +
                          (average_of(parameters).weights.given() ? 1.0 : 0.0);
  const double rounded = parameters.rounds() ? static_cast<double>(size_of(parameters.weight_dtype())) : 0;
  return static_cast<double>(parameters.trainable_numel()) / parameters.shard_ranks() *
         (accesses * static_cast<double>(size_of(parameters.dtype())) + rounded);
}

constexpr int kSteps = 4;  // number of steps in the timeline; lockstep-scale needs at least three

/// Returns the predicted timeline of kSteps consecutive steps, from time 0 on.
RankTimeline predicted_timeline(Trainer& trainer, const GpuPrediction& prediction, int micro_batches) {
  using Lane = SpanRecorder::Lane;
  RankTimeline part;
  const std::vector<Call>& calls = trainer.train_plan().calls();
  for (const Call& call : calls) {
    part.names.push_back({concat(call.layer, ' ', call.op), call.backward ? SpanKind::backward : SpanKind::forward});
  }
  const auto first_ready = static_cast<int>(part.names.size());
  const comm::GradientReducer& reducer = trainer.reducer();
  const auto element_bytes = static_cast<std::int64_t>(size_of(reducer.sent_as()));
  std::vector<comm::GradientRange> gradients = reducer.gradients();
  // Removes the reducer's last entry if it is the sum of the loss weights.
  gradients.resize(trainer.parameters().trainable().size());
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    part.names.push_back({"gradient " + trainer.parameters().trainable()[i].spec.name, SpanKind::ready,
                          static_cast<int>(i), (gradients[i].end - gradients[i].begin) * element_bytes});
  }
  const auto update = static_cast<int>(part.names.size());
  part.names.push_back({"update", SpanKind::update});

  double now_s = 0;
  for (int step = 1; step <= kSteps; ++step) {
    const auto take = [&](int name, double seconds) {
      const std::int64_t begin = std::llround(1e9 * now_s);
      now_s += seconds;
      part.spans.push_back({name, Lane::compute, step, begin, std::llround(1e9 * now_s)});
    };
    for (int micro_batch = 1; micro_batch <= micro_batches; ++micro_batch) {
      std::vector<int> missing(gradients.size());  // for each gradient, the number of calls that still have to write it
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        missing[i] = gradients[i].expected_writes;
      }
      for (std::size_t i = 0; i < calls.size(); ++i) {
        take(static_cast<int>(i), prediction.calls()[i].expected_s);
        for (const int gradient : calls[i].gradients) {
          if (--missing[static_cast<std::size_t>(gradient)] == 0 && micro_batch == micro_batches) {
            take(first_ready + gradient, 0);
          }
        }
      }
    }
    take(update, prediction.update().expected_s);
  }
  return part;
}

}  // namespace

std::string predict_on_gpu(const GpuDescription& gpu, Trainer& trainer, const std::string& trace) {
  const TrainerOptions& options = trainer.options();
  const std::int64_t own = options.step.virtual_ranks > 0 ? options.step.virtual_ranks / trainer.ranks() : 1;
  const auto micro_batches = static_cast<int>(options.accumulate * own);
  const GpuPrediction prediction(trainer.train_plan(), gpu,
                                 {.tf32 = options.step.plan.tf32,
                                  .update_bytes = update_bytes(trainer.parameters(), options.step.optimizer),
                                  .micro_batches = micro_batches,
                                  .samples = static_cast<double>(options.global_batch) / trainer.ranks()});
  std::string text = prediction.text(trainer.train_plan());
  if (traits_of(options.step.optimizer).whole_matrices) {
    text += "the products of muon are not in it\n";
  }
  const auto needed = static_cast<double>(trainer.planned_bytes());
  if (needed > gpu.memory_bytes) {
    text += concat("this step needs about ", digits(needed / 1e9, 1), " GB and this GPU has ",
                   digits(gpu.memory_bytes / 1e9, 0), " GB: it does not fit\n");
  }
  if (!trace.empty()) {
    TimelineFile::start(trace);
    TimelineFile file(trace, 0);
    file.add(predicted_timeline(trainer, prediction, micro_batches));
    file.finish();
    text += concat("timeline of this step, ", kSteps, " times: ", trace, '\n');
  }
  return text;
}

}  // namespace lockstep::nn
