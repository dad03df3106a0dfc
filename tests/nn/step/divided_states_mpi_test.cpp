// Runs under mpirun. Compares Strategy::zero1, whose states are divided over the ranks by MPI's reduce-scatter, with
// ddp.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <lockstep/comm/mpi/mpi_communicator.hpp>
#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/step/train_step.hpp>
#include <lockstep/runtime/base/random.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

#include "tests/comm/mpi_test_main.hpp"

namespace lockstep::nn {
namespace {

constexpr std::int64_t kBatch = 6;
constexpr std::int64_t kFeatures = 20;  // tensors of this size have padding in the arena
constexpr std::int64_t kClasses = 5;

/// Returns the parameters after steps whose gradients are clipped, or whose rates follow from norms of tensors.
std::vector<float> trained(Strategy strategy, const OptimizerOptions& optimizer, int steps) {
  ModelBuilder builder("mlp", {kFeatures});
  NodeId x = builder.linear("fc1", builder.input(), kFeatures, {.activation = ops::Activation::relu});
  x = builder.linear("fc2", x, kFeatures, {.activation = ops::Activation::relu});
  builder.linear("fc3", x, kClasses);
  const Model model = builder.build();
  CpuContext context({.threads = 1});
  Stream communication = Stream::host_inline();
  const auto grad = comm::make_mpi_communicator(MPI_COMM_WORLD);
  TrainStep step(context, {*grad, communication}, model,
                 {.max_batch = kBatch, .optimizer = optimizer, .strategy = strategy});
  Random random(static_cast<std::uint64_t>(grad->rank()) + 1, RandomUse::test);
  std::vector<float> values(kBatch * kFeatures);
  std::vector<std::int32_t> labels(kBatch);
  for (int i = 0; i < steps; ++i) {
    std::generate(values.begin(), values.end(), [&] { return static_cast<float>(random.normal()); });
    std::generate(labels.begin(), labels.end(), [&] { return static_cast<std::int32_t>(random.below(kClasses)); });
    step.update({{StateField::values, TensorView(std::span(values), {kBatch, kFeatures})},
                 {StateField::labels, TensorView(std::span(labels), {kBatch})}},
                0.05);
  }
  const TensorView parameters = step.parameters().values();
  const auto* first = static_cast<const float*>(parameters.data);
  return {first, first + parameters.numel()};
}

/// Both strategies must compute the same norms up to rounding. A norm that also counted bytes that are no gradients,
/// such as padding, would grow from step to step.
TEST(DividedStatesMpi, NormsAreThoseOfTheGradientsAlone) {
  const OptimizerOptions clipped{.clip_norm = 0.02};
  const OptimizerOptions lars{.kind = OptimizerKind::lars};
  for (const OptimizerOptions& optimizer : {clipped, lars}) {
    const std::vector<float> ddp = trained(Strategy::ddp, optimizer, 100);
    const std::vector<float> zero1 = trained(Strategy::zero1, optimizer, 100);
    ASSERT_EQ(ddp.size(), zero1.size());
    double moved = 0;
    double apart = 0;
    const std::vector<float> start = trained(Strategy::ddp, optimizer, 0);
    for (std::size_t i = 0; i < ddp.size(); ++i) {
      moved += std::pow(ddp[i] - start[i], 2);
      apart += std::pow(ddp[i] - zero1[i], 2);
    }
    EXPECT_GT(moved, 0);
    EXPECT_LE(std::sqrt(apart), 1e-4 * std::sqrt(moved)) << name_of(optimizer.kind);
  }
}

}  // namespace
}  // namespace lockstep::nn

int main(int argc, char** argv) {
  return lockstep::comm::mpi_test_main(argc, argv);
}
