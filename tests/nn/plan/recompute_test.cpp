// Tests activations that backward computes again. Results must have the same bits with less memory. A symbolic run of
// the plan's calls checks this for all kernels and choices.
#include <cstring>
#include <set>

#include <lockstep/comm/gradients/bucket_sum.hpp>
#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/models/resnet.hpp>
#include <lockstep/nn/models/transformer.hpp>
#include <lockstep/nn/plan/plan_builder.hpp>

#include "tests/comm/local_ranks.hpp"
#include "tests/nn/net.hpp"
#include "tests/nn/step/steps.hpp"
#include "tests/support/error_of.hpp"

namespace lockstep::nn {
namespace {

using testing::error_of, testing::Net;

constexpr std::int64_t kBatch = 5;

/// Returns a model with in-place layers, a chain of activations, dropout and pools. A shortcut spans half of the model,
/// and one value is read by every layer.
Model skips() {
  ModelBuilder b("skips", {9, 7, 4});
  const NodeId early = b.relu("relu1", b.conv2d("conv1", b.input(), 8, {.kernel = 3, .pad = 1, .bias = true}));
  NodeId x = b.batch_norm("norm2", b.conv2d("conv2", early, 8, {.kernel = 3, .pad = 1}));
  x = b.relu("relu2", b.add("add2", x, early));
  x = b.dropout("drop3", b.activation("gelu3", b.conv2d("conv3", x, 8, {.kernel = 1}), ops::Activation::gelu), 0.3);
  x = b.activation("tanh3", x, ops::Activation::tanh);
  x = b.layer_norm("norm4", b.conv2d("conv4", x, 8, {.kernel = 3, .pad = 1}));
  x = b.add("add4", x, early);
  x = b.max_pool("pool5", b.batch_norm("norm5", x, {.relu = true}), 3, 2, 1);
  x = b.average_pool("pool6", b.conv2d("conv6", x, 12, {.kernel = 3, .pad = 1}), 2, 2, 0);
  x = b.linear("fc7", x, 16, {.activation = ops::Activation::silu});
  x = b.linear("fc8", b.dropout("drop8", x, 0.5), 16, {.activation = ops::Activation::relu, .residual = x});
  b.linear("fc9", x, 3);
  return b.build();
}

/// Returns a model with the parts that GPUs fuse: a stem's pool, shortcuts with a norm.
Model blocks() {
  ModelBuilder b("blocks", {12, 12, 3});
  NodeId x = b.batch_norm("norm1", b.conv2d("conv1", b.input(), 8, {.kernel = 3, .pad = 1}), {.relu = true});
  x = b.max_pool("pool1", x, 3, 2, 1);
  for (const char* number : {"2", "3", "4"}) {
    const std::string n(number);
    const NodeId shortcut = b.batch_norm("norms" + n, b.conv2d("convs" + n, x, 8, {.kernel = 1}));
    NodeId y = b.batch_norm("norma" + n, b.conv2d("conva" + n, x, 8, {.kernel = 3, .pad = 1}), {.relu = true});
    y = b.conv2d("convb" + n, y, 8, {.kernel = 3, .pad = 1});
    x = b.batch_norm("normb" + n, y, {.relu = true, .residual = shortcut});
  }
  b.linear("fc", b.global_average_pool("pool", x), 3);
  return b.build();
}

Model text(double dropout) {
  return transformer({.vocabulary = 11, .length = 6, .width = 16, .heads = 2, .layers = 4, .dropout = dropout});
}

std::vector<Model> models() {
  return {skips(),
          blocks(),
          cifar_resnet(20, 10, 16, 16),
          text(0),
          text(0.2),
          blocks().freezing("conv1"),
          text(0.2).freezing("wte").freezing("h.0")};
}

Plan planned(const Model& model, PlanOptions options, std::int64_t batch = kBatch) {
  CpuContext context;
  return Plan(context, testing::on_values(model), Mode::train, batch, options);
}

PlanOptions with(Recompute recompute, PlanOptions options = {}) {
  options.recompute = recompute;
  return options;
}

bool is_again(const Call& call) {
  return call.op.starts_with("again ");
}

// --- Symbolic runs of a plan's calls

/// Returns the values that each call reads, if memory is placed as in the plan. A value is a text of how it was
/// computed: layer, op, number of the written slot, and the values that were read. The result has one entry for each
/// call that is not a repeated call, in order.
std::vector<std::string> values_read(const std::vector<Call>& calls, const std::vector<SlotInfo>& slots) {
  struct Piece {
    std::size_t end = 0;
    std::size_t value = 0;
  };
  std::map<std::size_t, Piece> workspace;  // pieces of the workspace, by offset
  std::map<std::pair<SlotKind, int>, std::size_t> others;
  std::set<int> written;  // slots whose memory was written; memory that was never written has no value
  const auto memory_of = [&](int slot) {
    while (slots[static_cast<std::size_t>(slot)].alias_of >= 0) {
      slot = slots[static_cast<std::size_t>(slot)].alias_of;
    }
    return slot;
  };
  const auto value_of = [&](SlotId id) -> std::size_t {
    const SlotInfo& slot = slots[static_cast<std::size_t>(id.index)];
    if (slot.kind != SlotKind::workspace) {
      const auto found = others.find({slot.kind, slot.source});
      return found == others.end() ? std::hash<std::string>()(concat(static_cast<int>(slot.kind), ' ', slot.source))
                                   : found->second;
    }
    const auto found = workspace.find(slot.offset);
    return !written.contains(memory_of(id.index)) || found == workspace.end() ||
                   found->second.end < slot.offset + slot.bytes
               ? 0
               : found->second.value;
  };
  std::vector<std::string> read;
  for (const Call& call : calls) {
    std::string values;
    for (const SlotId slot : call.reads) {
      values += concat(' ', value_of(slot));
    }
    const std::string op = call.layer + " " + (is_again(call) ? call.op.substr(6) : call.op);
    if (!is_again(call)) {
      read.push_back(op + values);
    }
    int number = 0;
    for (const SlotId id : call.writes) {
      const SlotInfo& slot = slots[static_cast<std::size_t>(id.index)];
      const std::size_t value = std::hash<std::string>()(concat(op, values, " writes ", number++));
      if (slot.kind != SlotKind::workspace) {
        others[{slot.kind, slot.source}] = value;
        continue;
      }
      std::erase_if(workspace, [&](const auto& piece) {
        return piece.first < slot.offset + slot.bytes && slot.offset < piece.second.end;
      });
      written.insert(memory_of(id.index));
      workspace[slot.offset] = {slot.offset + slot.bytes, value};
    }
  }
  return read;
}

TEST(Recompute, EveryCallReadsTheValuesThatItReadBefore) {
  for (const Model& model : models()) {
    for (const Fusions fusions : {Fusions::off, Fusions::on}) {
      // With cooperative kernels, recomputation could change calls that are not repeated.
      const PlanOptions options{.fusions = fusions, .cooperative = false};
      const Plan kept = planned(model, options);
      const std::vector<std::string> expected = values_read(kept.calls(), kept.slots());
      ASSERT_EQ(expected.size(), kept.calls().size());
      for (const Recompute recompute : {Recompute::cheap, Recompute::blocks}) {
        const Plan plan = planned(model, with(recompute, options));
        EXPECT_EQ(values_read(plan.calls(), plan.slots()), expected) << model.name() << ' ' << name_of(recompute);
        EXPECT_GT(plan.recomputed().calls, 0) << model.name() << ' ' << name_of(recompute);
      }
    }
  }
}

TEST(Recompute, AWrongRepetitionIsSeen) {
  for (const Model& model : {skips(), text(0.2)}) {
    const Plan kept = planned(model, {});
    const std::vector<std::string> expected = values_read(kept.calls(), kept.slots());
    const Plan plan = planned(model, with(Recompute::blocks));
    for (std::size_t i = 0; i < plan.calls().size(); ++i) {
      if (!is_again(plan.calls()[i])) {
        continue;
      }
      std::vector<Call> calls = plan.calls();
      calls.erase(calls.begin() + static_cast<std::ptrdiff_t>(i));
      EXPECT_NE(values_read(calls, plan.slots()), expected) << "without " << plan.calls()[i].op;
      calls = plan.calls();
      calls[i].reads.push_back(calls[i].writes.front());
      EXPECT_NE(values_read(calls, plan.slots()), expected) << plan.calls()[i].op << " reads something else";
      calls = plan.calls();
      std::rotate(calls.begin() + static_cast<std::ptrdiff_t>(i), calls.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                  calls.end());
      EXPECT_NE(values_read(calls, plan.slots()), expected) << plan.calls()[i].op << " comes at the end";
    }
  }
}

// --- bits

/// Runs a training plan without recomputation and plans with recomputation. Expects the same bits of loss, gradients
/// and running statistics. Each plan runs twice, because the first run changes the running statistics.
void expect_same_bits(const Model& model, DType dtype, const PlanOptions& options, const std::string& what) {
  Net kept(model, Mode::train, kBatch, dtype, 1, options);
  kept.scalars().valid = kBatch - 1;
  const double first = kept.run();
  const double loss = kept.run();
  for (const Recompute recompute : {Recompute::cheap, Recompute::blocks}) {
    const std::string name = concat(model.name(), ' ', dtype, ' ', name_of(recompute), ' ', what);
    Net net(model, Mode::train, kBatch, dtype, 1, with(recompute, options));
    net.scalars().valid = kBatch - 1;
    EXPECT_EQ(net.run(), first) << name;
    EXPECT_EQ(net.run(), loss) << name;
    testing::expect_same_bits(net.parameters().gradients(), kept.parameters().gradients(), name);
    testing::expect_same_bits(net.parameters().buffer_arena(), kept.parameters().buffer_arena(), name);
  }
}

TEST(Recompute, TheBitsStay) {
  for (const Model& model : models()) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
      expect_same_bits(model, dtype, {}, "");
    }
    expect_same_bits(model, DType::f32, {.fusions = Fusions::on}, "fused");
    expect_same_bits(model, DType::f64, {.accumulate = true}, "accumulating");
    expect_same_bits(model, DType::f32, {.reuse_memory = false}, "apart");
  }
}

/// y = (1 + n / 8) x, where n counts the runs. The layer has a hidden state that its slots do not show, so a repeated
/// run gives another result.
class Counting final : public Layer {
 public:
  Counting(std::string name, bool once) : Layer(std::move(name)), once_(once) {}
  [[nodiscard]] std::string kind() const override { return "counting"; }
  [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override { return inputs[0]; }
  [[nodiscard]] bool backward_reads_output() const override { return false; }
  void plan(PlanBuilder& builder) const override {
    const SlotId x = builder.input();
    const SlotId y = builder.activation(name(), builder.batched(builder.input_shape()));
    const auto count = std::make_shared<int>(0);
    const auto run = [=](Context&, const Frame& frame) {
      const double factor = 1 + 0.125 * (*count)++;
      const auto in = frame[x].span<double>();
      std::transform(in.begin(), in.end(), frame[y].span<double>().begin(), [=](double v) { return factor * v; });
    };
    if (once_) {
      builder.call_once("count", {x}, {y}, 0, run);
    } else {
      builder.call("count", {x}, {y}, 0, run);
    }
    builder.set_output(y);
    builder.on_backward([](PlanBuilder& b) { b.pass_gradient(0, b.output_gradients()[0]); });
  }

 private:
  bool once_;
};

TEST(Recompute, WhatHidesAnEffectRunsOnceWhereItSaysSo) {
  const auto gradients = [](bool once, Recompute recompute) {
    ModelBuilder b("counting", {6});
    NodeId x = b.input();
    for (const char* name : {"1", "2", "3", "4"}) {
      x = b.linear(name, x, 64, {.activation = ops::Activation::tanh});
      x = b.add(std::make_shared<Counting>(std::string("count ") + name, once), {x});
    }
    b.linear("5", x, 3);
    Net net(b.build(), Mode::train, kBatch, DType::f64, 1, with(recompute));
    net.run();
    return testing::to_doubles(net.parameters().gradients());
  };
  const std::vector<double> expected = gradients(false, Recompute::off);
  EXPECT_EQ(gradients(true, Recompute::off), expected);
  for (const Recompute recompute : {Recompute::cheap, Recompute::blocks}) {
    EXPECT_EQ(gradients(true, recompute), expected) << name_of(recompute);
    EXPECT_NE(gradients(false, recompute), expected) << "the control: the call was not repeated";
  }
}

TEST(Recompute, SharedStatisticsAreGatheredOnce) {
  int gathered = 0;
  comm::LocalGroup group(1);
  const auto ranks = group.communicator(0);
  const PlanOptions shared{.exchange = {.ranks = ranks.get(), .before = [&] { ++gathered; }}, .sync_batch_norm = true};
  std::vector<double> expected;
  int times = 0;
  for (const Recompute recompute : {Recompute::off, Recompute::cheap, Recompute::blocks}) {
    gathered = 0;
    Net net(blocks(), Mode::train, kBatch, DType::f64, 1, with(recompute, shared));
    net.run();
    const std::vector<double> gradients = testing::to_doubles(net.parameters().gradients());
    if (recompute == Recompute::off) {
      expected = gradients;
      times = gathered;
      EXPECT_EQ(times, 20) << "10 norms, forward and backward";
    }
    EXPECT_EQ(gradients, expected) << name_of(recompute);
    EXPECT_EQ(gathered, times) << name_of(recompute);
    EXPECT_EQ(net.plan().recomputed().calls > 0, recompute != Recompute::off);
  }
}

// --- whole steps

/// Returns parameters and running statistics of rank 0 after three steps of two micro-batches.
std::vector<std::vector<double>> trained(const Model& model, int ranks, Recompute recompute, TrainStepOptions options) {
  std::vector<std::vector<double>> result;
  comm::on_ranks(ranks, [&](comm::Communicator& grad) {
    TrainStepOptions own = options;
    own.max_batch = 3;
    own.microbatches = 2;
    own.plan.recompute = recompute;
    own.optimizer.kind = OptimizerKind::adamw;
    own.average = {.decay = 0.9};
    Step step(grad, model, own);
    AnyData data(model, 12);
    for (int i = 0; i < 3; ++i) {
      const std::int64_t begin = 6 * grad.rank();
      step.add(data.batch(begin, 3));
      step.update(data.batch(begin + 3, i == 1 ? 2 : 3), 0.01);
    }
    EXPECT_EQ(step.train_plan().recomputed().calls > 0, recompute != Recompute::off);
    if (grad.rank() == 0) {
      result = {step.values(), testing::to_doubles(step.parameters().buffer_arena())};
    }
  });
  return result;
}

TEST(Recompute, StepsEndWithTheSameParameters) {
  int reduced = 0;
  const auto hook = comm::make_gradient_hook(
      "own", [&](const TensorView& gradients, Stream& stream, comm::Communicator& communicator) {
        ++reduced;
        communicator.all_reduce(stream, gradients);
      });
  for (const Model& model : {cifar_resnet(20, 10, 16, 16).reading(InputKind::values), text(0.2)}) {
    const std::vector<TrainStepOptions> variants{{},
                                                 {.plan = {.dtype = DType::bf16}},
                                                 {.plan = {.dtype = DType::f64}, .strategy = Strategy::zero1},
                                                 {.sums = {.hook = hook}}};
    for (std::size_t v = 0; v < variants.size(); ++v) {
      const int ranks = variants[v].strategy == Strategy::zero1 ? 2 : 1;
      const auto expected = trained(model, ranks, Recompute::off, variants[v]);
      ASSERT_EQ(expected.size(), 2U);
      for (const Recompute recompute : {Recompute::cheap, Recompute::blocks}) {
        EXPECT_EQ(trained(model, ranks, recompute, variants[v]), expected)
            << model.name() << ' ' << name_of(recompute) << ", variant " << v;
      }
    }
  }
  EXPECT_GT(reduced, 0);
}

// --- what it takes

TEST(Recompute, RepeatedCallsAreBackwardCallsAndCounted) {
  const Plan kept = planned(skips(), {});
  EXPECT_EQ(kept.recomputed().calls, 0);
  for (const Recompute recompute : {Recompute::cheap, Recompute::blocks}) {
    const Plan plan = planned(skips(), with(recompute));
    Recomputed counted;
    int launches = 0;
    for (int i = 0; i < static_cast<int>(plan.calls().size()); ++i) {
      const Call& call = plan.calls()[static_cast<std::size_t>(i)];
      EXPECT_EQ(call.backward, i >= plan.backward_begin()) << call.op;
      if (is_again(call)) {
        EXPECT_TRUE(call.backward && call.gradients.empty()) << call.op;
        ++counted.calls;
        counted.flops += call.flops;
        counted.bytes += call.bytes;
        launches += call.launches;
      }
    }
    EXPECT_EQ(plan.recomputed().calls, counted.calls);
    EXPECT_EQ(plan.recomputed().flops, counted.flops);
    EXPECT_EQ(plan.recomputed().bytes, counted.bytes);
    EXPECT_EQ(plan.recomputed().workspace_bytes_without, kept.workspace_bytes());
    EXPECT_EQ(plan.calls().size(), kept.calls().size() + static_cast<std::size_t>(counted.calls));
    EXPECT_DOUBLE_EQ(plan.flops(), kept.flops() + counted.flops);
    EXPECT_EQ(plan.launches(), kept.launches() + launches);
    EXPECT_EQ(plan.choices(), kept.choices());
    EXPECT_NE(describe(plan).find(" calls again in backward: "), std::string::npos);
  }
  EXPECT_EQ(describe(kept).find("again"), std::string::npos);
}

TEST(Recompute, LessMemoryForFewOperations) {
  struct Case {
    Model model;
    std::int64_t batch;
    double cheap, blocks;  ///< largest size of the workspace, as a share of that without recomputation
  };
  const std::vector<Case> cases{
      {resnet(50), 8, 0.7, 0.35},
      {cifar_resnet(110, 10, 32, 32), 8, 0.65, 0.2},
      {transformer({.vocabulary = 256, .length = 64, .width = 64, .heads = 4, .layers = 24}), 4, 0.75, 0.12}};
  for (const Case& item : cases) {
    const Plan kept = planned(item.model, {}, item.batch);
    const Plan cheap = planned(item.model, with(Recompute::cheap), item.batch);
    const Plan blocks = planned(item.model, with(Recompute::blocks), item.batch);
    const auto all = static_cast<double>(kept.workspace_bytes());
    EXPECT_LT(static_cast<double>(cheap.workspace_bytes()), item.cheap * all) << item.model.name();
    EXPECT_LT(static_cast<double>(blocks.workspace_bytes()), item.blocks * all) << item.model.name();
    EXPECT_EQ(cheap.recomputed().flops, 0) << item.model.name();
    EXPECT_GT(blocks.recomputed().flops, 0) << item.model.name();
    EXPECT_LT(blocks.recomputed().flops, 0.34 * kept.flops()) << "a forward pass is a third";
  }
}

TEST(Recompute, NeverTakesMoreMemory) {
  for (const Model& model : models()) {
    const std::size_t kept = planned(model, {}).workspace_bytes();
    EXPECT_LE(planned(model, with(Recompute::cheap)).workspace_bytes(), kept) << model.name();
    EXPECT_LE(planned(model, with(Recompute::blocks)).workspace_bytes(), kept) << model.name();
  }
  // A model of one layer has nothing to recompute, and plans that do not train ignore the option.
  ModelBuilder b("one", {4});
  b.linear("fc", b.input(), 3);
  EXPECT_EQ(planned(b.build(), with(Recompute::blocks)).recomputed().calls, 0);
  CpuContext context;
  for (const Mode mode : {Mode::evaluate, Mode::infer}) {
    const Plan plan(context, testing::on_values(skips()), mode, kBatch, with(Recompute::blocks));
    EXPECT_EQ(plan.recomputed().calls, 0);
    EXPECT_EQ(plan.recomputed().workspace_bytes_without, 0U);
  }
}

TEST(Recompute, AnUnknownValueIsRefused) {
  EXPECT_EQ(error_of<UsageError>([] { (void)planned(skips(), with(static_cast<Recompute>(7))); }),
            "plan: recompute is 7, expected off, cheap or blocks");
}

}  // namespace
}  // namespace lockstep::nn
