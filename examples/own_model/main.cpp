// mpirun -np N own_model [EPOCHS]: trains a user's own model on own data, on GPUs with one rank each, or on the CPU.
// Writes checkpoints to own_model.out, continues from the last one, and predicts. README.md shows the middle part.
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include <lockstep/comm/launch/rank_context.hpp>
#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/run/training_run.hpp>
#include <lockstep/nn/step/inference.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/random.hpp>

using namespace lockstep;  // NOLINT(google-build-using-namespace): a program

/// Points of two spirals. The label of a point is the number of its spiral, 0 or 1.
struct Points {
  Points(std::int64_t count, std::uint64_t seed) : size(count) {
    Random random(seed, RandomUse::synthetic);
    for (std::int64_t i = 0; i < count; ++i) {
      const double radius = random.uniform();
      const double angle = M_PI * (3 * radius + static_cast<double>(i % 2));
      xy.push_back(static_cast<float>(radius * std::cos(angle) + 0.01 * random.normal()));
      xy.push_back(static_cast<float>(radius * std::sin(angle) + 0.01 * random.normal()));
      spiral.push_back(static_cast<std::int32_t>(i % 2));
    }
  }
  nn::MemoryDataset dataset(const char* name) {
    const TensorView values{std::span(xy), {size, 2}}, labels{std::span(spiral), {size}};
    return {name, {{nn::StateField::values, values}, {nn::StateField::labels, labels}}};
  }
  std::int64_t size;
  std::vector<float> xy;             // x and y of each point: shape (size, 2)
  std::vector<std::int32_t> spiral;  // label of each point: shape (size)
};

struct EpochLines final : nn::RunObserver {
  void on_epoch_end(const nn::EpochEvent& e) override {
    std::printf("epoch %d: test accuracy %.2f %%\n", static_cast<int>(e.epoch), 100 * e.test.accuracy);
  }
};

int run(comm::Session& session, int argc, char** argv) {
  char* end = nullptr;
  const std::int64_t epochs = argc > 1 ? std::strtoll(argv[1], &end, 10) : 30;
  require<UsageError>(argc <= 2 && (end == nullptr || *end == '\0') && epochs > 0,
                      "usage: own_model [EPOCHS], a number above 0; results in own_model.out");
  Points train(4096, 1), test(1024, 2);
  EpochLines lines;
  nn::RunObserver silent;
  // README.md from here
  comm::RankContext here(session);  // one rank per GPU; without GPUs the CPU

  nn::ModelBuilder b("spirals", {2});  // a sample is two numbers
  nn::NodeId x = b.linear("1", b.input(), 64, {.activation = ops::Activation::tanh});
  x = b.linear("2", x, 64, {.activation = ops::Activation::tanh});
  b.linear("3", x, 2);  // one output for each of two classes
  const nn::Model model = b.build();
  const nn::MemoryDataset train_set = train.dataset("spirals"), test_set = test.dataset("other points");
  nn::Trainer trainer(here.context(), {here.grad(), here.control(), here.communication_stream()}, model,
                      {train_set, test_set},
                      {.global_batch = 128,
                       .step = {.optimizer = {.kind = nn::OptimizerKind::adamw}, .weight_decay = 1e-4},
                       .schedule = {.base = 5e-3}});
  trainer.start();  // sends rank 0's parameters to all ranks

  const nn::RunIdentity identity = nn::identity_of(trainer);
  std::string differs;  // differences from the run that wrote the checkpoint, one per line
  nn::RunProgress progress = nn::resume_if_there("own_model.out/last", trainer, here.control(), identity, &differs);
  std::printf("%s", session.rank() == 0 ? differs.c_str() : "");
  nn::run_training(trainer, here.control(), identity, {.epochs = epochs, .checkpoint_dir = "own_model.out"}, progress,
                   session.rank() == 0 ? lines : silent);

  nn::Inference predict(here.context(), model, trainer.parameters());  // run(): up to 1024 samples, no allocation
  std::vector<float> point{0.33F, 0}, scores(2);
  predict.run(TensorView(std::span(point), {1, 2}), TensorView(std::span(scores), {1, 2}));
  here.context().synchronize();
  // README.md to here
  if (session.rank() == 0) {
    std::printf("(%g, %g) is on spiral %d\n", point[0], point[1], scores[1] > scores[0] ? 1 : 0);
  }
  return exit_code::kFinished;
}

int main(int argc, char** argv) {
  return comm::run_program(argc, argv, run);
}
