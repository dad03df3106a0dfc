#include <lockstep/nn/run/detail/test_run.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <lockstep/runtime/stream/sync_guard.hpp>

namespace lockstep::nn::detail {

namespace {

/// Evaluates a micro-batch once for each view (test-time augmentation), and writes the mean output over the views to
/// the plan's output. Returns the sums of loss and accuracy for the mean output.
Metrics sums_of_views(const TestRun& run, const Batch& batch) {
  const Plan& plan = run.step.evaluation_plan();
  const TensorView images = batch.view(StateField::images);
  ViewedBatch viewed(plan.top_k());
  viewed.begin(plan.batch(), batch.valid);
  Batch seen = batch;
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(images.numel()));
  for (const TestTimeView& view : test_time_views(run.views)) {
    for (FieldView& field : seen.fields) {
      if (field.field == StateField::images) {
        field.view = {std::span(bytes), images.shape};
      }
    }
    show_view(view, images, {std::span(bytes), images.shape});
    run.step.evaluate(seen);
    run.step.synchronize();  // synchronize() checks the communicator while it waits; the copy below does not
    viewed.add(run.context, view.weight, plan.output());
  }
  viewed.write(run.context, plan.output());
  return viewed.metrics(batch.view(StateField::labels));
}

}  // namespace

Metrics TestRun::own_sums(const Trainer::EvaluationHook& each) const {
  (void)step.take_evaluated();
  Loader loader(test, share.test(), step.host_memory(), share.loader_options());
  const SyncGuard idle(context.stream());  // waits for the copies
  // `viewed` has one element, or one for each virtual rank of this rank, like the sums of TrainStep.
  std::vector<Metrics> viewed(static_cast<std::size_t>(step.parameters().statistics_rows()));
  for (std::int64_t i = 0; i < share.test().batches(); ++i) {
    ranks.doing("evaluating batch", i + 1);
    const Batch& batch = loader.next();
    for (std::int64_t j = 0; j < share.microbatches(); ++j) {
      const Batch& microbatch = share.microbatch_of(batch, j);
      if (views != TestTimeAugmentation::none) {
        viewed[static_cast<std::size_t>(j) % viewed.size()] += sums_of_views(*this, microbatch);
      } else {
        step.evaluate(microbatch);
      }
      if (each) {
        each(microbatch, step.evaluation_plan().output());
      }
    }
  }
  ranks.doing("waiting for the device at the end of the evaluation after step", share.position().step);
  const Metrics of_step = step.take_evaluated();
  return views != TestTimeAugmentation::none ? sum_in_tree(viewed) : of_step;
}

}  // namespace lockstep::nn::detail
