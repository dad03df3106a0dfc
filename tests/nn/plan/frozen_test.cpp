// Tests frozen parameters. All other parameters must train as if nothing were frozen. For frozen parameters, nothing
// may be computed, reduced, stored or changed.
#include <set>

#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/step/state_file.hpp>
#include <lockstep/runtime/files/safetensors.hpp>
#include <lockstep/runtime/tensor/copy.hpp>

#include "tests/nn/net.hpp"
#include "tests/nn/run/stop_at.hpp"
#include "tests/nn/run/trainer_runs.hpp"
#include "tests/nn/step/steps.hpp"

namespace lockstep::nn {
namespace {

using testing::error_of, testing::expect_holds;
using Net = testing::CheckedNet;
using testing::to_doubles;

using Names = std::vector<std::string>;

/// Returns a residual block of convolutions and norms, and two linear layers.
Model images() {
  ModelBuilder b("images", {6, 6, 3});
  const NodeId stem = b.conv2d("stem", b.input(), 8, {.kernel = 3, .pad = 1, .bias = true});
  NodeId x = b.batch_norm("norm1", stem, {.relu = true});
  x = b.conv2d("conv2", x, 8, {.kernel = 3, .pad = 1});
  x = b.batch_norm("norm2", x, {.relu = true, .residual = stem});
  x = b.global_average_pool("pool", x);
  x = b.linear("fc1", x, 8, {.activation = ops::Activation::tanh, .residual = x});
  b.linear("fc2", x, 3);
  return b.build();
}

/// Returns one block of a transformer, with a tied head.
Model tokens() {
  ModelBuilder b = ModelBuilder::for_tokens("tokens", 4);
  NodeId x = b.embedding("embed", "positions", b.input(), 8, 8);
  NodeId y = b.layer_norm("norm1", x);
  y = b.linear("qkv", y, 24);
  y = b.attention("attention", y, {.heads = 2, .causal = true});
  x = b.linear("out", y, 8, {.residual = x});
  y = b.layer_norm("norm2", x);
  x = b.linear("mlp", y, 8, {.activation = ops::Activation::gelu, .residual = x});
  b.linear("head", x, 8, {.bias = false, .weight = "embed.weight"});
  return b.build();
}

Model frozen(Model model, const Names& prefixes) {
  for (const std::string& prefix : prefixes) {
    model = model.freezing(prefix);
  }
  return model;
}

/// Expects that the trainable parameters of `part` have gradients with the same bits as in `whole`, and that the calls
/// of `part` compute no other gradients.
void expect_same_gradients(Net& whole, Net& part, const std::string& what) {
  ASSERT_LT(part.parameters().trainable().size(), part.parameters().parameters().size()) << what;
  for (const ParameterInfo& info : part.parameters().trainable()) {
    const std::string& name = info.spec.name;
    EXPECT_TRUE(testing::has_same_bits(part.parameters().gradient(part.parameters().find(name)),
                                       whole.parameters().gradient(whole.parameters().find(name))))
        << what << ": " << name;
  }
  std::set<int> written;
  for (const Call& call : part.plan().calls()) {
    written.insert(call.gradients.begin(), call.gradients.end());
  }
  EXPECT_EQ(written.size(), part.parameters().trainable().size()) << what;
  EXPECT_EQ(*written.rbegin() + 1, static_cast<int>(written.size())) << what;
}

TEST(Frozen, TheOthersHaveTheSameGradients) {
  struct Case {
    Model model;
    Names prefixes;
  };
  const std::vector<Case> cases{{images(), {"stem"}},
                                {images(), {"norm1"}},
                                {images(), {"norm1.bias", "norm2.weight"}},
                                {images(), {"stem", "norm1", "conv2", "norm2"}},
                                {images(), {"fc2"}},
                                {images(), {"fc1.bias", "stem.weight"}},
                                {images(), {"fc1", "conv2"}},
                                {tokens(), {"embed", "positions"}},
                                {tokens(), {"positions", "norm1.weight", "norm2", "mlp.bias"}},
                                {tokens(), {"embed"}},
                                {tokens(), {"embed", "positions", "norm1", "qkv", "out"}}};
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    for (const Case& item : cases) {
      for (const bool accumulate : {false, true}) {
        const PlanOptions options{.accumulate = accumulate};
        Net whole(item.model, Mode::train, 6, dtype, 1, options);
        Net part(frozen(item.model, item.prefixes), Mode::train, 6, dtype, 1, options);
        EXPECT_EQ(whole.run(), part.run());
        EXPECT_EQ(whole.run(), part.run());
        expect_same_gradients(whole, part, concat(item.prefixes[0], ' ', dtype));
        EXPECT_EQ(to_doubles(whole.parameters().buffer_arena()), to_doubles(part.parameters().buffer_arena()));
        EXPECT_LT(part.plan().calls().size(), whole.plan().calls().size() + (item.prefixes[0] == "norm1" ? 1 : 0) +
                                                  (item.prefixes[0] == "norm1.bias" ? 1 : 0));
        EXPECT_LE(part.plan().workspace_bytes(), whole.plan().workspace_bytes() + 4096);
      }
    }
  }
}

TEST(Frozen, BackwardEndsAtTheFirstLayerThatTrains) {
  const auto layers = [](const Model& model) {
    Net net(model, Mode::train, 2, DType::f32);
    std::set<std::string> names;
    for (const Call& call : net.plan().calls()) {
      if (call.backward) {
        names.insert(call.layer);
      }
    }
    return names;
  };
  EXPECT_EQ(layers(frozen(images(), {"stem", "norm1", "conv2", "norm2"})), (std::set<std::string>{"fc1", "fc2"}));
  EXPECT_EQ(layers(frozen(images(), {"stem", "norm1", "conv2", "norm2", "fc1"})), (std::set<std::string>{"fc2"}));
  EXPECT_EQ(layers(frozen(images(), {"fc1", "fc2"})).size(), layers(images()).size());
}

TEST(Frozen, TheArenasEndInFrontOfThem) {
  CpuContext context;
  const Model model = frozen(images(), {"fc1", "norm1.bias"});
  ParameterSet set(context, model, DType::f32, {.weight_decay = 0.1});
  const ParameterArenaBytes bytes = parameter_arena_bytes(model, DType::f32);
  EXPECT_EQ(set.parameters().size(), 11U);
  EXPECT_EQ(set.trainable().size(), 8U);
  EXPECT_EQ(set.gradients().numel(), set.trainable_numel());
  EXPECT_EQ(set.add_state(context, "state").numel(), set.trainable_numel());
  EXPECT_EQ(bytes.values, set.values().bytes());
  EXPECT_EQ(bytes.gradients, set.gradients_and_weight_sum().bytes());
  EXPECT_LT(set.trainable_numel(), set.numel());
  const auto ranges = gradient_ranges(set);
  ASSERT_EQ(ranges.size(), 8U);
  EXPECT_EQ(ranges.back().end, set.trainable_numel());
  EXPECT_EQ(set.parameters()[8].offset, set.trainable_numel());
  for (const ops::ArenaSegment& segment : set.tensor_segments()) {
    EXPECT_EQ(segment.trainable, segment.offset < set.trainable_numel());
  }
  expect_holds(error_of<UsageError>([&] { static_cast<void>(set.gradient(set.find("fc1.bias"))); }),
               "'fc1.bias' is frozen");
  EXPECT_EQ(model.parameter_count(), images().parameter_count());
}

TEST(Frozen, WhatCannotBeIsRefused) {
  expect_holds(error_of<UsageError>([] { static_cast<void>(images().freezing("fc")); }), "no parameter 'fc'");
  expect_holds(error_of<UsageError>([] { static_cast<void>(images().freezing("")); }), "no parameter ''");
  ModelBuilder b("one", {4});
  const NodeId x = b.linear("1", b.input(), 3);
  expect_holds(error_of<UsageError>([&] { b.freeze("2"); }), "no parameter '2'");
  b.freeze("1");
  expect_holds(error_of<UsageError>([&] { static_cast<void>(b.build()); }), "all parameters are frozen");
  b.linear("10", x, 3);  // freeze("1") must not freeze layer "10", although its name begins with "1"
  const Model model = b.build();
  EXPECT_EQ(model.parameters()[0].spec.name, "10.weight");
  EXPECT_TRUE(model.parameters()[0].spec.trainable);
  EXPECT_FALSE(model.parameters()[3].spec.trainable);
  expect_holds(error_of<UsageError>([&] { static_cast<void>(model.freezing("10")); }), "all parameters are frozen");
}

// --- steps

TrainStepOptions options_of(OptimizerKind kind, double clip_norm) {
  return {.max_batch = 6,
          .seed = 4,
          .plan = {.dtype = DType::f32},
          .optimizer = {.kind = kind, .clip_norm = clip_norm},
          .weight_decay = 0.1,
          .buckets = {.bucket_bytes = 256}};
}

std::vector<double> value_of(TrainStep& step, const std::string& name) {
  return to_doubles(step.parameters().value(step.parameters().find(name)));
}

bool is_frozen(const std::string& name) {
  return name.starts_with("stem.") || name.starts_with("norm1.") || name == "fc1.weight";
}

const Names kPrefixes{"stem", "norm1", "fc1.weight"};

TEST(Frozen, AStepChangesTheOthersAsBefore) {
  for (const OptimizerKind kind : testing::optimizer_kinds()) {
    for (const bool added : {false, true}) {
      Step whole(images(), options_of(kind, 0));
      Step part(frozen(images(), kPrefixes), options_of(kind, 0));
      std::map<std::string, std::vector<double>> before;
      for (const ParameterInfo& info : part.parameters().parameters()) {
        before[info.spec.name] = value_of(part, info.spec.name);
        EXPECT_EQ(before[info.spec.name], value_of(whole, info.spec.name)) << "it begins alike";
      }
      Images data(1);
      for (TrainStep* step : {&whole, &part}) {
        if (added) {
          step->add(data.batch());
          step->add(data.batch());
          step->update(0.05);
        } else {
          step->update(data.batch(), 0.05);
        }
        step->synchronize();
      }
      for (const auto& [name, value] : before) {
        EXPECT_EQ(value_of(part, name) == value, is_frozen(name)) << name;
        EXPECT_EQ(value_of(part, name) == value_of(whole, name), !is_frozen(name)) << name;
      }
      EXPECT_LT(part.planned_bytes(), whole.planned_bytes());
    }
  }
}

TEST(Frozen, TheNormIsThatOfTheOthers) {
  Step step(frozen(images(), kPrefixes), options_of(OptimizerKind::sgd, 1e-3));
  Images(1).train(step);
  step.synchronize();
  double sum = 0;
  const double divisor = to_doubles(step.parameters().weight_sum())[0];
  for (const double g : to_doubles(step.parameters().gradients())) {
    sum += g / divisor * (g / divisor);
  }
  EXPECT_NEAR(to_doubles(step.optimizer().gradient_norm())[0], std::sqrt(sum), 1e-6 * std::sqrt(sum));
  EXPECT_GT(sum, 0);
}

TEST(Frozen, RanksAgree) {
  for (const OptimizerKind kind : {OptimizerKind::sgd, OptimizerKind::lars}) {
    comm::on_ranks(2, [&](comm::Communicator& grad, comm::Communicator& control) {
      CpuContext context({.threads = 1});
      Stream stream = Stream::host_worker("reduce");
      TrainStep whole(context, {grad, stream}, images(), options_of(kind, 0));
      TrainStep part(context, {grad, stream}, frozen(images(), kPrefixes), options_of(kind, 0));
      const std::vector<double> stem = value_of(part, "stem.weight");
      Images first(1, grad.rank(), 3);
      for (TrainStep* step : {&whole, &part}) {
        step->update(first.batch(), 0.05);
        step->synchronize();
      }
      for (const ParameterInfo& info : part.parameters().parameters()) {
        EXPECT_EQ(value_of(part, info.spec.name) == value_of(whole, info.spec.name), !is_frozen(info.spec.name))
            << info.spec.name;
      }
      for (int i = 2; i < 5; ++i) {
        Images more(i, grad.rank(), 3);
        part.add(more.batch());
        part.update(more.batch(), 0.05);
      }
      part.require_same_state(control);
      EXPECT_EQ(value_of(part, "stem.weight"), stem);
      EXPECT_EQ(part.reducer().buckets().back().end, part.parameters().trainable_numel() + kArenaStep);
    });
  }
}

TEST(Frozen, AStateIsSavedAndLoaded) {
  const testing::TemporaryFolder folder;
  for (const OptimizerKind kind : testing::optimizer_kinds()) {
    Step whole(frozen(images(), kPrefixes), options_of(kind, 0.1));
    Images(1).train(whole);
    save_state(folder / "state", whole);
    Step part(frozen(images(), kPrefixes), options_of(kind, 0.1));
    static_cast<void>(load_state(folder / "state", part));
    Images(2).train(whole);
    Images(2).train(part);
    EXPECT_EQ(part.lasting(), whole.lasting());
    const SafetensorsFile states(folder / "state/optimizer.safetensors");
    for (const TensorEntry& entry : states.entries()) {
      EXPECT_EQ(entry.name.find("stem."), std::string::npos) << entry.name;
    }
    EXPECT_NE(SafetensorsFile(folder / "state/model.safetensors").find("stem.weight"), nullptr);
    // A model that also trains these layers refuses the file, because the file lacks the optimizer states of these
    // layers.
    Step other(images(), options_of(kind, 0.1));
    expect_holds(error_of<DataError>([&] { static_cast<void>(load_state(folder / "state", other)); }),
                 "of another model or optimizer");
  }
}

TEST(Frozen, ACheckpointResumesBitForBit) {
  const testing::TemporaryFolder folder;
  const DataSplit data =
      open_data({.seed = 5, .synthetic = {.train_size = 40, .test_size = 12, .height = 12, .width = 12, .classes = 4}});
  TrainerSetup setup{.ranks = 2,
                     .options = {.global_batch = 8},
                     .model = cifar_resnet(8, 4, 12, 12).freezing("conv1").freezing("bn1").freezing("layer1"),
                     .data = data};
  setup.options.schedule.total_steps = 8;
  setup.options.step.optimizer.clip_norm = 0.5;
  const auto train = [&](std::int64_t stop_after, const std::string& dir, const std::string& resume) {
    on_trainers(setup, [&](Trainer& trainer, comm::Communicator& control) {
      RunProgress progress;
      const RunIdentity identity = identity_of(trainer);
      if (!resume.empty()) {
        EXPECT_EQ(resume_checkpoint(resume, trainer, control, identity, progress), "");
      }
      std::atomic<int> stop{0};
      testing::StopAt stop_at(stop_after, stop);
      static_cast<void>(run_training(trainer, control, identity,
                                     {.epochs = 2, .steps = 8, .checkpoint_dir = dir, .stop = &stop, .stop_within = 0},
                                     progress, stop_at));
    });
  };
  train(8, folder / "whole", "");
  train(3, folder / "part", "");
  train(8, folder / "part", folder / "part/last");
  for (const char* file : {"/last/model.safetensors", "/last/optimizer.safetensors", "/last/state.json"}) {
    const std::string bytes = testing::get_file(folder / ("whole" + std::string(file)));
    EXPECT_FALSE(bytes.empty());
    EXPECT_TRUE(bytes == testing::get_file(folder / ("part" + std::string(file)))) << file;
  }
}

}  // namespace
}  // namespace lockstep::nn
