// Tests weight gradients on the side stream: PlanOptions::beside, TrainStepOptions::weights_beside.
#include <cstring>

#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/models/resnet.hpp>
#include <lockstep/nn/models/transformer.hpp>
#include <lockstep/nn/plan/plan_builder.hpp>

#include "tests/nn/net.hpp"
#include "tests/nn/step/steps.hpp"
#include "tests/support/error_of.hpp"

namespace lockstep::nn {
namespace {

constexpr std::int64_t kBatch = 3;

/// Returns a block with a convolution in its shortcut, a bias, groups, a transposed convolution, and a pooled stem.
Model block() {
  ModelBuilder b("block", {12, 12, 3});
  NodeId x = b.conv2d("conv1", b.input(), 6, {.kernel = 5, .stride = 2, .pad = 2});
  x = b.max_pool("maxpool", b.batch_norm("bn1", x, {.relu = true}), 3, 2, 1);
  const NodeId shortcut = b.batch_norm("d1", b.conv2d("d0", x, 8, {.kernel = 1, .stride = 2}));
  NodeId y = b.batch_norm("b1", b.conv2d("c1", x, 4, {.kernel = 1}), {.relu = true});
  y = b.batch_norm("b2", b.conv2d("c2", y, 4, {.kernel = 3, .stride = 2, .pad = 1, .groups = 2}), {.relu = true});
  y = b.batch_norm("b3", b.conv2d("c3", y, 8, {.kernel = 1, .bias = true}), {.relu = true, .residual = shortcut});
  y = b.conv_transpose2d("up", y, 4, {.kernel = 2, .stride = 2, .bias = true});
  b.linear("fc", b.global_average_pool("avgpool", y), 3);
  return b.build();
}

Model text() {
  return transformer({.vocabulary = 11, .length = 6, .width = 16, .heads = 2, .layers = 3, .dropout = 0.2});
}

/// A layer y = x whose gradient is doubled. The weight gradient on the side stream reads dy; the next call then
/// overwrites dy.
class Doubled final : public Layer {
 public:
  using Layer::Layer;
  [[nodiscard]] std::string kind() const override { return "doubled"; }
  [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override { return Shape(inputs[0]); }
  [[nodiscard]] std::vector<ParameterSpec> parameters(std::span<const Shape> inputs) const override {
    const Shape shape{inputs[0].back()};
    return {{.name = name() + ".weight", .shape = shape, .dims = shape, .axes = {0}, .stored_last = shape[0]}};
  }
  void plan(PlanBuilder& builder) const override {
    builder.set_output(builder.input());
    builder.on_backward([this](PlanBuilder& b) {
      const SlotId dy = b.output_gradients()[0];
      const std::int64_t channels = b.input_shape().back();
      const GradientTarget dweight = b.parameter_gradient(name() + ".weight");
      b.beside([&] { b.reduce_rows(dy, {b.prototype(dy).numel() / channels, channels}, dweight); });
      const SlotId dx = b.overwrite_gradient(dy, "doubled");
      b.call("double", {dy}, {dx}, 0, [=](Context& context, const Frame& frame) {
        context.stream().enqueue([from = frame[dy], to = frame[dx]] {
          for (std::size_t i = 0; i < static_cast<std::size_t>(to.numel()); ++i) {
            to.span<float>()[i] = 2 * from.span<float>()[i];
          }
        });
      });
      b.pass_gradient(0, dx);
    });
  }
};

Model in_place() {
  ModelBuilder b("in place", {40});
  NodeId x = b.linear("fc1", b.input(), 50);
  x = b.linear("fc2", b.add(std::make_shared<Doubled>("doubled1"), {x}), 50);
  b.linear("fc3", b.add(std::make_shared<Doubled>("doubled2"), {x}), 3);
  return b.build();
}

std::vector<Model> models() {
  return {in_place(), block(), cifar_resnet(20, 10, 16, 16), block().freezing("c2"), text(), text().freezing("h.0")};
}

std::vector<PlanOptions> all_options() {
  std::vector<PlanOptions> all;
  for (const Fusions fusions : {Fusions::off, Fusions::on}) {
    for (const Recompute recompute : {Recompute::off, Recompute::cheap, Recompute::blocks}) {
      all.push_back({.fusions = fusions, .recompute = recompute});
    }
  }
  return all;
}

bool of_weights(const Call& call) {
  return (call.op.find("backward_weights") != std::string::npos || call.layer.starts_with("doubled")) &&
         !call.gradients.empty();
}

bool overlap(const TensorView& a, const TensorView& b) {
  const auto* const begin_a = static_cast<const std::byte*>(a.data);
  const auto* const begin_b = static_cast<const std::byte*>(b.data);
  return begin_a < begin_b + b.bytes() && begin_b < begin_a + a.bytes();
}

bool overlap(const Plan& plan, const std::vector<SlotId>& a, const std::vector<SlotId>& b) {
  return std::any_of(a.begin(), a.end(), [&](SlotId of_a) {
    return std::any_of(b.begin(), b.end(), [&](SlotId of_b) { return overlap(plan.view(of_a), plan.view(of_b)); });
  });
}

/// Returns the names of the first two calls that clash, or "". Two calls clash if the side stream and the main stream
/// may run them at the same time, and one call writes memory that the second call reads or writes. Memory is compared
/// by address.
std::string first_clash(const Plan& plan) {
  const std::vector<Call>& calls = plan.calls();
  for (const Join& join : plan.joins()) {
    const Call& beside = calls[static_cast<std::size_t>(join.call)];
    for (int j = join.call + 1; j < join.before; ++j) {
      const Call& other = calls[static_cast<std::size_t>(j)];
      if (!other.beside && (overlap(plan, beside.writes, other.writes) || overlap(plan, beside.writes, other.reads) ||
                            overlap(plan, beside.reads, other.writes))) {
        return beside.layer + " " + beside.op + " and " + other.layer + " " + other.op;
      }
    }
  }
  return {};
}

TEST(Beside, NothingTouchesTheMemoryOfAWeightGradientBeforeItIsWaitedFor) {
  int beyond = 0;
  for (const Model& model : models()) {
    for (PlanOptions options : all_options()) {
      CpuContext second;
      options.beside = &second;
      testing::Net net(model, Mode::train, kBatch, DType::f32, 1, options);
      const Plan& plan = net.plan();
      SCOPED_TRACE(concat(model.name(), ", ", name_of(options.recompute)));
      EXPECT_EQ(first_clash(plan), "");
      std::size_t next = 0;
      for (std::size_t i = 0; i < plan.calls().size(); ++i) {
        EXPECT_EQ(plan.calls()[i].beside, of_weights(plan.calls()[i])) << plan.calls()[i].op;
        if (plan.calls()[i].beside) {
          ASSERT_LT(next, plan.joins().size());
          EXPECT_EQ(plan.joins()[next].call, static_cast<int>(i));
          EXPECT_GT(plan.joins()[next].before, static_cast<int>(i));
          beyond += plan.joins()[next].before > static_cast<int>(i) + 1 ? 1 : 0;
          ++next;
        }
      }
      EXPECT_EQ(next, plan.joins().size());
      EXPECT_TRUE(std::is_sorted(plan.joins().begin(), plan.joins().end(),
                                 [](const Join& a, const Join& b) { return a.before < b.before; }));
    }
  }
  EXPECT_GT(beyond, 300) << "calls run beside others";
}

TEST(Beside, WhatIsOverwrittenIsWaitedFor) {
  CpuContext context;
  CpuContext second;
  const Plan plan(context, in_place(), Mode::train, kBatch, {.beside = &second});
  int found = 0;
  for (const Join& join : plan.joins()) {
    if (plan.calls()[static_cast<std::size_t>(join.call)].layer.starts_with("doubled")) {
      ASSERT_LT(join.before, static_cast<int>(plan.calls().size()));
      EXPECT_EQ(plan.calls()[static_cast<std::size_t>(join.before)].op, "double");
      ++found;
    }
  }
  EXPECT_EQ(found, 2);
}

/// The control: with weight gradients on the side stream, many tensors must live longer than in the plan for one
/// stream. With the memory of that plan, calls would clash.
TEST(Beside, TensorsLiveLonger) {
  int clashes = 0;
  for (const Model& model : models()) {
    CpuContext context;
    CpuContext second;
    const Plan alone(context, testing::on_values(model), Mode::train, kBatch);
    const Plan plan(context, testing::on_values(model), Mode::train, kBatch, {.beside = &second});
    EXPECT_GE(plan.workspace_bytes(), alone.workspace_bytes());
    EXPECT_LE(static_cast<double>(plan.workspace_bytes()), 2 * static_cast<double>(alone.workspace_bytes()));
    for (std::size_t i = 0; i < plan.slots().size(); ++i) {
      clashes += plan.slots()[i].last != alone.slots()[i].last ? 1 : 0;
    }
  }
  EXPECT_GT(clashes, 20);
}

/// The model's parameters after some steps of two micro-batches, and the loss.
struct Trained {
  std::vector<std::byte> values;
  double loss = 0;
  friend bool operator==(const Trained&, const Trained&) = default;
};

Trained train(const Model& model, bool beside, bool worker, const PlanOptions& plan, std::uint64_t seed = 1) {
  constexpr int kSteps = 3;
  Stream stream = worker ? Stream::host_worker("main") : Stream::host_inline();
  CpuContext context({.threads = 1, .stream = &stream});
  TrainStepOptions options{.max_batch = kBatch, .microbatches = 2, .seed = seed};
  options.plan = plan;
  options.weights_beside = beside;
  options.buckets.bucket_bytes = 1000;
  const Model read = testing::on_values(model);
  TrainStep step(context, read, options);
  AnyData data(read, 2 * kSteps * kBatch);  // all steps are enqueued before the first ends, so each needs its own data
  for (std::int64_t i = 0; i < 2 * kSteps; ++i) {
    step.add(data.batch(i * kBatch, kBatch));
    if (i % 2 == 1) {
      step.update(0.05);
    }
  }
  step.synchronize();
  const TensorView all = step.parameters().values();
  Trained result{.loss = step.wait_loss().value};
  result.values.resize(all.bytes());
  std::memcpy(result.values.data(), all.data, all.bytes());
  return result;
}

TEST(Beside, TheBitsAreThoseOfOneStream) {
  for (const Model& model : models()) {
    for (const PlanOptions& options : all_options()) {
      SCOPED_TRACE(concat(model.name(), ", ", name_of(options.recompute)));
      const Trained alone = train(model, false, false, options);
      EXPECT_EQ(train(model, false, true, options), alone) << "one worker";
      EXPECT_EQ(train(model, true, false, options), alone) << "one after the other";
      for (int i = 0; i < 3; ++i) {
        EXPECT_EQ(train(model, true, true, options), alone) << "at the same time";
      }
    }
    EXPECT_FALSE(train(model, true, true, {}, 2) == train(model, true, true, {})) << "the control";
  }
}

/// Makes a step of two samples with `features` features.
void update(TrainStep& step, std::int64_t features) {
  std::vector<float> values(static_cast<std::size_t>(2 * features), 0.5F);
  std::vector<std::int32_t> labels{0, 1};
  step.update({{StateField::values, TensorView(std::span(values), {2, features})},
               {StateField::labels, TensorView(std::span(labels), {2})}},
              0.1);
  step.synchronize();
}

TEST(Beside, ATimelineShowsItsCallsInALaneOfTheirOwn) {
  CpuContext context({.threads = 1});
  TrainStep step(context, in_place(), {.max_batch = 2, .microbatches = 1, .weights_beside = true});
  SpanRecorder recorder(Device::cpu(), 1, 1, 1000);
  step.record_into(&recorder);
  recorder.begin_step(1);
  update(step, 40);
  std::vector<std::string> beside;
  for (const SpanRecorder::Span& span : recorder.take(context.stream())) {
    if (span.lane == SpanRecorder::Lane::beside) {
      beside.push_back(recorder.names()[static_cast<std::size_t>(span.name)].text);
    }
  }
  ASSERT_EQ(beside.size(), 5U);
  EXPECT_EQ(beside[0].substr(0, 27), "fc3 matmul backward_weights");
  EXPECT_EQ(beside[1], "doubled2 reduce_rows");
  step.record_into(nullptr);
}

TEST(Beside, ACooperativeLaunchIsRefused) {
  class Together final : public Layer {
   public:
    using Layer::Layer;
    [[nodiscard]] std::string kind() const override { return "together"; }
    [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override { return Shape(inputs[0]); }
    void plan(PlanBuilder& builder) const override {
      builder.set_output(builder.input());
      builder.on_backward([](PlanBuilder& b) {
        const SlotId dy = b.output_gradients()[0];
        b.beside([&] { b.call_together("fused", {dy}, {}, 0, [](Context&, const Frame&) {}); });
        b.pass_gradient(0, dy);
      });
    }
  };
  ModelBuilder b("model", {4});
  const NodeId x = b.linear("fc1", b.input(), 5);
  b.linear("fc2", b.add(std::make_unique<Together>("layer"), {x}), 3);
  const Model model = b.build();
  CpuContext context({.threads = 1});
  CpuContext other({.threads = 1});
  const Plan alone(context, model, Mode::train, 2);
  EXPECT_TRUE(
      std::any_of(alone.calls().begin(), alone.calls().end(), [](const Call& call) { return call.op == "fused"; }));
  testing::expect_holds(
      testing::error_of<StateError>([&] { const Plan plan(context, model, Mode::train, 2, {.beside = &other}); }),
      "layer plans the cooperative launch 'fused' on the second context");
}

TEST(Beside, AFailureBesideIsTheStepsFailure) {
  /// A layer whose weight gradient fails.
  class Failing final : public Layer {
   public:
    explicit Failing(bool* fails) : Layer("failing"), fails_(fails) {}
    [[nodiscard]] std::string kind() const override { return "failing"; }
    [[nodiscard]] Shape output_shape(std::span<const Shape> inputs) const override { return Shape(inputs[0]); }
    void plan(PlanBuilder& builder) const override {
      builder.set_output(builder.input());
      builder.on_backward([this](PlanBuilder& b) {
        const SlotId dy = b.output_gradients()[0];
        b.beside([&] {
          b.call("backward_weights", {dy}, {}, 0, [fails = fails_](Context& context, const Frame&) {
            context.stream().enqueue([fails] { require<UsageError>(!*fails, "no weights today"); });
          });
        });
        b.pass_gradient(0, dy);
      });
    }

   private:
    bool* fails_;
  };
  for (const bool worker : {false, true}) {
    bool fails = true;
    ModelBuilder b("model", {4});
    NodeId x = b.linear("fc1", b.input(), 5);
    x = b.add(std::make_unique<Failing>(&fails), {x});
    b.linear("fc2", x, 3);
    const Model model = b.build();
    Stream stream = worker ? Stream::host_worker("main") : Stream::host_inline();
    CpuContext context({.threads = 1, .stream = &stream});
    TrainStep step(context, model, {.max_batch = 2, .microbatches = 1, .weights_beside = true});
    testing::expect_holds(testing::error_of<Error>([&] { update(step, 4); }), "no weights today");
    if (!worker) {  // a failed worker stream cannot be used again
      fails = false;
      update(step, 4);
      Step expected(model, {.max_batch = 2, .microbatches = 1});
      update(expected, 4);
      testing::expect_same_bits(step.parameters().values(), expected.parameters().values());
    }
  }
}

TEST(Beside, WhatCannotBeIsRefused) {
  CpuContext context;
  const Model model = testing::on_values(block());
  EXPECT_THROW((void)Plan(context, model, Mode::train, kBatch, {.beside = &context}), UsageError);
  CpuContext second;
  EXPECT_THROW((void)TrainStep(context, model, {.max_batch = kBatch, .plan = {.beside = &second}}), UsageError);
  const Plan evaluation(context, model, Mode::evaluate, kBatch, {.beside = &second});
  EXPECT_TRUE(evaluation.joins().empty());
}

}  // namespace
}  // namespace lockstep::nn
