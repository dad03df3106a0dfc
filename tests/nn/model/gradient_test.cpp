// Compares the gradient of whole models in f64 with central differences of the loss, parameter by parameter.
#include <algorithm>

#include <lockstep/kernels/fill.hpp>
#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/models/resnet.hpp>
#include <lockstep/nn/models/transformer.hpp>
#include <lockstep/nn/step/inference.hpp>
#include <lockstep/nn/step/tape.hpp>
#include <lockstep/runtime/base/align.hpp>

#include "tests/nn/net.hpp"
#include "tests/support/error_of.hpp"

namespace lockstep::nn {
namespace {

using Net = testing::CheckedNet;

struct Check {
  std::int64_t batch = 3;
  int samples = 20;  ///< number of compared elements of each parameter
  PlanOptions plan{};
  int threads = 1;
  std::string cancelled{};
  bool control = false;  ///< true: also scales gradients by 1.001, which must fail the check
  std::string what{};
};

/// Numbers for the inputs and outputs of a model, for one batch, and views of these numbers.
struct Samples {
  std::int64_t batch;
  const Model& model;
  [[nodiscard]] std::vector<double> drawn(const Shape& sample, std::uint64_t seed) const {
    Random random(seed, RandomUse::test);
    std::vector<double> numbers(static_cast<std::size_t>(batch * sample.numel()));
    std::ranges::generate(numbers, [&] { return random.normal(); });
    return numbers;
  }
  [[nodiscard]] std::vector<double> input(std::uint64_t seed) const { return drawn(model.input_shape(), seed); }
  [[nodiscard]] std::vector<double> output(std::uint64_t seed) const { return drawn(model.output_shape(), seed); }
  [[nodiscard]] TensorView view(std::vector<double>& numbers, const Shape& sample) const {
    Shape shape{batch};
    for (const std::int64_t extent : sample) {
      shape.push_back(extent);
    }
    return {std::span(numbers), shape};
  }
  [[nodiscard]] TensorView in(std::vector<double>& numbers) const { return view(numbers, model.input_shape()); }
  [[nodiscard]] TensorView out(std::vector<double>& numbers) const { return view(numbers, model.output_shape()); }
};

/// Compares a tape's gradients of parameters and input with central differences. The loss is a weighted sum of the
/// outputs. Models whose inputs are not numbers have no tape, so the function returns at once.
void expect_tape_gradients(const Model& model, const Check& check) {
  const Model on_values = testing::on_values(model);
  if (on_values.input_kind() != InputKind::values) {
    return;
  }
  CpuContext context({.threads = check.threads});
  ParameterSet set(context, on_values, DType::f64);
  set.initialise(context, 7);
  PlanOptions plan = check.plan;
  plan.dtype = DType::f64;
  Tape tape(context, on_values, set, {.max_batch = check.batch, .plan = plan});
  const Samples of{check.batch, on_values};
  std::vector<double> x = of.input(13), weights = of.output(4), y(weights.size()), dx(x.size());
  const TensorView in = of.in(x), out = of.out(y), given = of.out(weights);
  tape.backward(tape.forward(in, out), given, of.in(dx));
  std::vector<double> analytic = testing::to_doubles(set.gradients());
  std::vector<testing::GradientPair> pairs{{"input", in, of.in(dx)}};
  for (std::size_t i = 0; i < set.trainable().size(); ++i) {
    const ParameterInfo& info = set.trainable()[i];
    const TensorView values = set.value(static_cast<int>(i));
    if (info.spec.name != check.cancelled) {
      pairs.push_back(
          {info.spec.name, values, TensorView(analytic.data() + info.offset, DType::f64, Device::cpu(), values.shape)});
    }
  }
  const auto loss = [&] {
    tape.release(tape.forward(in, out));
    return testing::weighted_sum(out, given);
  };
  for (const testing::GradientPair& pair : pairs) {
    EXPECT_LE(testing::gradient_error(loss, std::span(&pair, 1), 1e-5, check.samples), 1e-7)
        << pair.name << ", of a tape";
  }
  for (double& gradient : dx) {
    gradient *= 1.001;
  }
  EXPECT_FALSE(check.control && testing::gradient_error(loss, pairs, 1e-5, check.samples) <= 1e-5)
      << "an error of a thousandth in the input's gradient";
}

/// Kinds of layers without a rule for tangents (jvp).
const std::vector<std::string> kWithoutTangents{"attention", "embedding", "max_pool", "max_pool1d", "max_pool3d"};

/// Tests a tape's products of vectors and the Jacobian. vjp() must give the dx of backward(). jvp() must be the
/// transpose of vjp(). In inference passes, vjp() must also agree with finite differences of Inference.
void expect_products(const Model& model, const Check& check, bool inference_pass) {
  const Model on_values = testing::on_values(model);
  if (on_values.input_kind() != InputKind::values) {
    return;
  }
  CpuContext context({.threads = check.threads});
  ParameterSet set(context, on_values, DType::f64);
  set.initialise(context, 7);
  TapeOptions options{.max_batch = check.batch, .plan = check.plan, .inference_pass = inference_pass, .vjp = true};
  options.plan.dtype = DType::f64;
  options.plan.recompute = Recompute::off;
  bool has_tangents = true;
  for (const Node& node : on_values.nodes()) {
    has_tangents = has_tangents && (!node.layer || std::ranges::count(kWithoutTangents, node.layer->kind()) == 0);
  }
  options.jvp = true;
  if (!has_tangents) {
    testing::expect_holds(testing::error_of<UnsupportedError>([&] { Tape(context, on_values, set, options); }),
                          {"layer ", "no rule for tangents"});
    options.jvp = false;
  }
  Tape tape(context, on_values, set, options);
  const Samples of{check.batch, on_values};
  std::vector<double> x = of.input(13), u = of.output(4), t = of.input(21);
  std::vector<double> y(u.size()), vjp(x.size()), again(x.size()), dx(x.size()), jt(u.size());
  const std::int64_t pass = tape.forward(of.in(x), of.out(y));
  tape.vjp(pass, of.out(u), of.in(vjp));
  EXPECT_EQ(testing::to_doubles(set.gradients()),
            std::vector<double>(static_cast<std::size_t>(set.gradients().numel()), 0.0));
  if (options.jvp) {
    tape.jvp(pass, of.in(t), of.out(jt));
    double sums[2] = {}, size = 0;
    for (std::size_t i = 0; i < u.size(); ++i) {
      sums[0] += u[i] * jt[i];
      size += std::abs(u[i] * jt[i]);
    }
    for (std::size_t i = 0; i < x.size(); ++i) {
      sums[1] += vjp[i] * t[i];
      size += std::abs(vjp[i] * t[i]);
    }
    EXPECT_LE(std::abs(sums[0] - sums[1]), 1e-13 * size) << "u J t = " << sums[0];
  }
  tape.vjp(pass, of.out(u), of.in(again));
  EXPECT_EQ(again, vjp) << "a second time";
  tape.backward(pass, of.out(u), of.in(dx));
  EXPECT_EQ(dx, vjp) << "as backward()";
  TapeOptions constant = options;
  constant.parameter_gradients = false;
  ops::fill(context, 0, set.gradients());
  Tape other(context, on_values, set, constant);
  std::vector<double> y2(y.size());
  const std::int64_t only = other.forward(of.in(x), of.out(y2));
  other.vjp(only, of.out(u), of.in(again));
  EXPECT_EQ(again, vjp) << "with constant parameters";
  other.backward(only, of.out(u), of.in(again));
  EXPECT_EQ(again, vjp) << "backward() with constant parameters";
  EXPECT_EQ(testing::to_doubles(set.gradients()),
            std::vector<double>(static_cast<std::size_t>(set.gradients().numel()), 0.0));
  if (!inference_pass) {
    return;
  }
  Inference inference(context, on_values, set, {.max_batch = check.batch, .plan = {.dtype = DType::f64}});
  inference.run(of.in(x), of.out(again = std::vector<double>(y.size())));
  EXPECT_EQ(y, again) << "the bits of inference";
  const testing::GradientPair pair{"input", of.in(x), of.in(vjp)};
  const auto loss = [&] {
    inference.run(of.in(x), of.out(y));
    return testing::weighted_sum(of.out(y), of.out(u));
  };
  EXPECT_LE(testing::gradient_error(loss, std::span(&pair, 1), 1e-5, check.samples), 1e-7);
}

void expect_gradients(const Model& model, const Check& check = {}, const char* file = __builtin_FILE(),
                      int line = __builtin_LINE()) {
  const ::testing::ScopedTrace trace(file, line, check.what);
  Net net(model, Mode::train, check.batch, DType::f64, check.threads, check.plan);
  EXPECT_TRUE(testing::parameter_gradient_error(net, check.samples, 1, check.cancelled) <= 1e-5);
  EXPECT_FALSE(check.control && testing::parameter_gradient_error(net, check.samples, 1.001) <= 1e-5)
      << "an error of a thousandth";
  expect_tape_gradients(model, check);
  expect_products(model, check, false);
  expect_products(model, check, true);
}

const PlanOptions kMse{.loss = Loss::mse};

TEST(Gradient, LinearClassifier) {
  expect_gradients(mlp({3, 3, 3}, {}, 3), {.batch = 5, .samples = 40});
}

TEST(Gradient, DeepMlp) {
  expect_gradients(mlp({3, 3, 3}, {8, 7, 6}, 3), {.batch = 5, .samples = 30, .control = true});
}

TEST(Gradient, SmallCifarResNetWithBatchNormAndOptionA) {
  expect_gradients(cifar_resnet(8, 3, 8, 8), {.batch = 4, .samples = 12, .threads = 2});
}

TEST(Gradient, PaddedBatchHasTheGradientOfTheValidSamples) {
  const Model model = cifar_resnet(8, 3, 8, 8);
  Net whole(model, Mode::train, 3, DType::f64);
  Net padded(model, Mode::train, 5, DType::f64);
  // Inputs are drawn in order from one seed, so the first three samples of both nets are equal.
  padded.scalars().valid = 3;
  padded.scalars().sample_weight = whole.scalars().sample_weight;
  EXPECT_NEAR(whole.run(), padded.run(), 1e-12);
  testing::expect_close(padded.parameters().gradients(), whole.parameters().gradients(), 1e-12);
}

TEST(Gradient, BottleneckWithMaxPoolAndDownsample) {
  // The model is a small version of ResNet-50: a stem with max pool, then bottlenecks with projection shortcuts.
  ModelBuilder b("tiny", {12, 12, 3});
  NodeId x = b.conv2d("conv1", b.input(), 6, {.kernel = 5, .stride = 2, .pad = 2});
  x = b.batch_norm("bn1", x, {.relu = true});
  x = b.max_pool("maxpool", x, 3, 2, 1);
  NodeId shortcut = b.batch_norm("d1", b.conv2d("d0", x, 8, {.kernel = 1, .stride = 2}));
  NodeId y = b.batch_norm("b1", b.conv2d("c1", x, 4, {.kernel = 1}), {.relu = true});
  y = b.batch_norm("b2", b.conv2d("c2", y, 4, {.kernel = 3, .stride = 2, .pad = 1}), {.relu = true});
  y = b.batch_norm("b3", b.conv2d("c3", y, 8, {.kernel = 1, .bias = true}), {.relu = true, .residual = shortcut});
  y = b.global_average_pool("avgpool", y);
  b.linear("fc", y, 3);
  expect_gradients(b.build(), {.batch = 4, .samples = 15, .cancelled = "c3.bias"});
}

TEST(Gradient, GroupedAndDilatedConvolutions) {
  // A small ResNeXt block, and a block whose kernel reads every second pixel.
  ModelBuilder b("tiny_next", {9, 9, 3});
  NodeId x = b.batch_norm("bn1", b.conv2d("conv1", b.input(), 6, {.pad = 1}), {.relu = true});
  NodeId y = b.batch_norm("b1", b.conv2d("c1", x, 8, {.kernel = 1}), {.relu = true});
  y = b.batch_norm("b2", b.conv2d("c2", y, 8, {.pad = 1, .groups = 4}), {.relu = true});
  x = b.batch_norm("b3", b.conv2d("c3", y, 6, {.kernel = 1}), {.relu = true, .residual = x});
  y = b.conv2d("c4", x, 4, {.stride = 2, .pad = 2, .bias = true, .groups = 2, .dilation = 2});
  b.linear("fc", b.relu("r4", y), 3);
  expect_gradients(b.build(), {.batch = 4, .samples = 15, .control = true});
}

TEST(Gradient, IdentityShortcutOfAMaxPool) {
  // ResNet-18: the pooled tensor feeds a convolution and the residual of the same block.
  ModelBuilder b("tiny18", {8, 8, 3});
  NodeId x =
      b.max_pool("maxpool", b.batch_norm("bn1", b.conv2d("conv1", b.input(), 4, {.pad = 1}), {.relu = true}), 3, 2, 1);
  NodeId y = b.batch_norm("b1", b.conv2d("c1", x, 4, {.pad = 1}), {.relu = true});
  y = b.batch_norm("b2", b.conv2d("c2", y, 4, {.pad = 1}), {.relu = true, .residual = x});
  b.linear("fc", b.global_average_pool("avgpool", y), 3);
  expect_gradients(b.build(), {.samples = 15});
}

TEST(Gradient, AveragePoolOfAShortcut) {
  // ResNet-D: the shortcut averages 2 x 2 pixels before its convolution; here the windows extend over the edge.
  for (const ops::AverageOver over : {ops::AverageOver::window, ops::AverageOver::inside}) {
    ModelBuilder b("tiny_d", {8, 8, 3});
    NodeId x = b.conv2d("conv1", b.input(), 4, {.pad = 1});
    NodeId shortcut = b.conv2d("d0", b.average_pool("pool", x, 2, 2, 0), 6, {.kernel = 1});
    NodeId y = b.conv2d("c1", b.average_pool("edge", x, 3, 2, 1, over), 6, {.kernel = 1});
    b.linear("fc", b.relu("r", b.add("sum", y, shortcut)), 3);
    expect_gradients(b.build(), {.samples = 15});
  }
}

TEST(Gradient, ConvolutionsAndPoolsOfASeries) {
  for (const ops::AverageOver over : {ops::AverageOver::window, ops::AverageOver::inside}) {
    ModelBuilder b("series", {11, 3});
    NodeId x = b.conv1d("c1", b.input(), 4, {.pad = 1, .bias = true});
    x = b.max_pool1d("max", b.activation("a1", x, ops::Activation::tanh), 3, 2, 1);
    x = b.conv1d("c2", x, 6, {.kernel = 2, .pad = 1, .bias = true, .groups = 2, .dilation = 2});
    const NodeId up = b.conv_transpose1d("up", x, 6, {.kernel = 3, .pad = 1, .groups = 3, .dilation = 2});
    x = b.batch_norm("bn", b.average_pool1d("mean", up, 3, 2, 1, over), {.relu = true});
    b.linear("fc", b.global_average_pool("all", x), 3);
    expect_gradients(b.build(), {.batch = 4, .samples = 15, .control = true});
  }
}

TEST(Gradient, TransposedConvolutionBesideOtherReaders) {
  // The model reduces and restores the resolution, as a U-Net does. Layers before and after the transposed convolutions
  // read the same inputs as these convolutions.
  for (const bool bias : {true, false}) {
    ModelBuilder b("u", {6, 5, 3});
    const NodeId fine = b.activation("a1", b.conv2d("c1", b.input(), 4, {.pad = 1}), ops::Activation::silu);
    const NodeId coarse = b.conv2d("c2", fine, 6, {.stride = 2, .pad = 1, .bias = true});
    NodeId x = b.conv_transpose2d("t1", coarse, 4, {.kernel = 3, .pad = 1, .bias = bias});
    x = b.conv2d("c3", x, 4, {.kernel = 2, .pad = 1});  // 5 x 5 -> 6 x 6
    const NodeId same = b.conv_transpose2d("t2", coarse, 6, {.kernel = 3, .stride = 1, .pad = 1, .bias = bias});
    const NodeId both = b.add("both", b.add("again", same, coarse), coarse);
    const NodeId last = b.conv_transpose2d("t3", both, 4, {.kernel = 2, .bias = bias, .groups = 2});
    b.add("sum", b.conv2d("c4", x, 2), b.conv2d("c5", last, 2));
    expect_gradients(b.build(), {.samples = 15, .plan = kMse, .control = true, .what = concat("bias ", bias)});
  }
}

TEST(Gradient, ATransposedConvolutionThatIsTheFirstOrTheLastLayer) {
  ModelBuilder b("ends", {3, 4, 4});
  const NodeId x = b.conv_transpose2d("first", b.input(), 5, {.kernel = 3, .output_pad = 1, .bias = true});
  b.conv_transpose2d("last", b.activation("a", x, ops::Activation::silu), 3, {.kernel = 1, .stride = 2, .bias = true});
  expect_gradients(b.build(), {.plan = kMse});
}

TEST(Gradient, AFieldOfThreeAxes) {
  for (const ops::AverageOver over : {ops::AverageOver::window, ops::AverageOver::inside}) {
    ModelBuilder b("field", {4, 6, 5, 2});
    const NodeId fine =
        b.activation("a1", b.conv3d("c1", b.input(), 4, {.pad = 1, .bias = true}), ops::Activation::silu);
    const NodeId max = b.max_pool3d("max", fine, 3, 2, 1);
    const NodeId mean = b.average_pool3d("mean", fine, 3, 2, 1, over);
    NodeId x = b.conv3d("c2", b.add("sum", max, mean), 6, {.pad = 2, .groups = 2, .dilation = 2});
    x = b.conv_transpose3d("up", b.batch_norm("bn", x), 4, {.kernel = 3, .pad = 1, .bias = true});
    b.linear("fc", b.average_pool3d("overlap", x, 2, 1, 0), 3);
    expect_gradients(b.build(), {.samples = 8, .plan = kMse, .control = true});
  }
}

TEST(Gradient, ANumberForEachAxis) {
  for (const ops::AverageOver over : {ops::AverageOver::window, ops::AverageOver::inside}) {
    ModelBuilder b("uneven", {4, 7, 6, 2});
    const NodeId fine = b.activation(
        "a1", b.conv3d("c1", b.input(), 4, {.kernel = {1, 3, 2}, .stride = {1, 2, 1}, .pad = {0, 1, 0}, .bias = true}),
        ops::Activation::silu);
    const NodeId max = b.max_pool3d("max", fine, {1, 2, 3}, {1, 2, 1}, {0, 1, 1});  // windows of one plane
    const NodeId mean = b.average_pool3d("mean", fine, {3, 2, 3}, {1, 2, 1}, 1, over);
    NodeId x = b.conv3d("c2", b.add("sum", max, mean), 6,
                        {.kernel = {2, 1, 3}, .pad = {1, 0, 2}, .groups = 2, .dilation = {2, 1, 2}});
    x = b.max_pool3d("deep", x, {2, 1, 1}, {2, 1, 1}, 0);  // windows of one row and one column
    x = b.conv_transpose3d(
        "up", x, 4,
        {.kernel = {3, 2, 1}, .stride = {2, 2, 1}, .pad = {1, 0, 0}, .output_pad = {0, 1, 0}, .bias = true});
    b.linear("fc", b.average_pool3d("last", x, {2, 1, 3}, {1, 1, 2}, {0, 0, 1}, over), 3);
    expect_gradients(b.build(), {.samples = 8, .plan = kMse, .control = true});
  }
}

TEST(Gradient, ATransposedConvolutionOfImagesWithThreeChannels) {
  // Three channels are stored as four. The transposed convolution reads either the input, which needs no gradient, or
  // the output of a batch norm, which needs one.
  for (const bool normed : {false, true}) {
    ModelBuilder b("rgb", {3, 4, 3});
    const NodeId in = normed ? b.batch_norm("bn", b.input()) : b.input();
    const NodeId up = b.conv_transpose2d("up", in, 4, {.kernel = 3, .stride = {1, 2}, .pad = 1, .bias = true});
    const NodeId each = b.conv_transpose2d("each", in, 6, {.kernel = {3, 1}, .stride = 1, .pad = {1, 0}, .groups = 3});
    const NodeId down = b.conv2d("down", b.activation("a", up, ops::Activation::silu), 6,
                                 {.kernel = {1, 3}, .stride = {1, 2}, .pad = {0, 1}});
    b.conv2d("out", b.add("sum", down, each), 2, {.kernel = 1});
    const Model model = b.build();
    for (const Model::Parameter& parameter : model.parameters()) {
      if (parameter.spec.name == "up.weight") {
        EXPECT_EQ(parameter.spec.stored_shape(), (Shape{3, 3, 3, 4}));
      }
    }
    expect_gradients(model, {.plan = kMse, .control = true, .what = concat("normed ", normed)});
  }
}

TEST(Gradient, BatchNormOfTheInput) {
  // The input needs no gradient. Its fourth, stored channel does not belong to the model.
  for (const bool relu : {false, true}) {
    ModelBuilder b("normed", {6, 5, 3});
    NodeId x = b.batch_norm("bn0", b.input(), {.relu = relu});
    x = b.relu("r1", b.conv2d("c1", x, 4, {.pad = 1, .bias = true}));
    b.linear("fc", b.max_pool("pool", x, 2, 2, 0), 3);
    const Model model = b.build();
    // bn0: 2 x 3, c1: 4 x 3 x 9 + 4, fc: 3 x (4 x 3 x 2) + 3.
    EXPECT_EQ(model.parameter_count(), 6 + 112 + 75);
    EXPECT_EQ(model.buffers()[0].shape, Shape{3});
    expect_gradients(model, {.batch = 4, .what = concat("relu ", relu)});
  }
}

TEST(Gradient, BatchNormOfFlatFeaturesAndOfALinearLayer) {
  ModelBuilder b("flat", {7});
  NodeId x = b.batch_norm("bn0", b.input(), {.relu = true});
  x = b.batch_norm("bn1", b.linear("l1", x, 6), {.relu = true});
  b.linear("fc", x, 3);
  expect_gradients(b.build(), {.batch = 6, .cancelled = "l1.bias"});
}

TEST(Gradient, BatchNormOfTheInputWithAResidualThatWantsItsGradient) {
  ModelBuilder b("side", {5, 5, 4});
  const NodeId side = b.conv2d("c1", b.input(), 4, {.pad = 1});
  const NodeId x = b.batch_norm("bn0", b.input(), {.relu = true, .residual = side});
  b.linear("fc", b.batch_norm("bn1", x, {.residual = b.input()}), 3);
  expect_gradients(b.build());
}

TEST(Gradient, FourReadersOfOneTensorAreAddedUp) {
  ModelBuilder b("fan", {4, 4, 3});
  const NodeId x = b.batch_norm("bn1", b.conv2d("conv1", b.input(), 4, {.pad = 1}), {.relu = true});
  NodeId y = b.batch_norm("r1", x, {.relu = true, .residual = x});
  y = b.batch_norm("r2", y, {.relu = true, .residual = x});
  y = b.batch_norm("r3", b.conv2d("c1", x, 4, {.pad = 1}), {.relu = true, .residual = y});
  b.linear("fc", b.relu("relu", y), 3);
  expect_gradients(b.build(), {.samples = 15});
}

TEST(Gradient, ConvolutionWithBiasAndReluWithoutBatchNorm) {
  ModelBuilder b("plain", {7, 6, 3});
  NodeId x = b.relu("r1", b.conv2d("c1", b.input(), 5, {.kernel = 3, .stride = 2, .pad = 1, .bias = true}));
  x = b.relu("r2", b.conv2d("c2", x, 4, {.kernel = 1, .bias = true}));
  b.linear("fc", x, 3);
  expect_gradients(b.build());
}

TEST(Gradient, EveryActivation) {
  ModelBuilder b("smooth", {5, 4, 3});
  NodeId x = b.conv2d("c0", b.input(), 5, {.kernel = 3, .pad = 1, .bias = true});
  int i = 0;
  for (const ops::Activation function : {ops::Activation::gelu, ops::Activation::gelu_tanh, ops::Activation::silu,
                                         ops::Activation::tanh, ops::Activation::sigmoid}) {
    const std::string number = std::to_string(++i);
    x = b.conv2d("c" + number, b.activation("a" + number, x, function), 4, {.kernel = 1, .bias = true});
  }
  b.linear("fc", b.layer_norm("norm", x), 3);
  const Model model = b.build();
  Net net(model, Mode::train, 3, DType::f64);
  EXPECT_TRUE(testing::parameter_gradient_error(net, 20) <= 1e-5);
  Net evaluation(model, Mode::evaluate, 3, DType::f64);
  EXPECT_EQ(evaluation.run(), net.run()) << "there outputs take the place of inputs";
}

TEST(Gradient, LayerNormOfPixelsAndOfFeatures) {
  ModelBuilder b("layer norm", {5, 4, 3});
  const NodeId x = b.conv2d("c1", b.input(), 6, {.kernel = 3, .pad = 1, .bias = true});
  NodeId y = b.activation("a1", b.layer_norm("n1", x), ops::Activation::gelu);
  y = b.batch_norm("join", y, {.residual = x});
  y = b.layer_norm("n2", b.linear("l1", y, 7), 1e-3);
  b.linear("fc", b.layer_norm("n3", y), 3);
  expect_gradients(b.build());
}

TEST(Gradient, TransformerWithTiedWeightsAndDropout) {
  // Without dropout, a single pass over the matrix product adds the bias and the residual.
  for (const double dropout : {0.2, 0.0}) {
    const TransformerOptions options{
        .vocabulary = 7, .length = 5, .width = 6, .heads = 2, .layers = 2, .dropout = dropout, .causal = true};
    const Model model = transformer(options);
    Net net(model, Mode::train, 3, DType::f64, 2, {.dropout_seed = 3});
    EXPECT_TRUE(testing::parameter_gradient_error(net, 6) <= 1e-5) << dropout;
    EXPECT_FALSE(testing::parameter_gradient_error(net, 6, 1.001) <= 1e-5);
    const auto parameters = net.parameters().parameters();
    const auto table = static_cast<std::size_t>(net.parameters().find("wte.weight"));
    EXPECT_EQ(parameters[table].writes, 2) << "the logits and the embedding";
    Net evaluation(model, Mode::evaluate, 3, DType::f64);
    EXPECT_EQ(evaluation.run() == net.run(), dropout == 0) << "evaluation knows no dropout";
  }
}

TEST(Gradient, LinearLayersWithAnEpilogue) {
  for (const bool bias : {true, false}) {
    ModelBuilder b("epilogue", {6});
    const NodeId x = b.linear("l0", b.input(), 5, {.bias = bias, .activation = ops::Activation::relu});
    const NodeId y = b.linear("l1", x, 5, {.bias = bias, .activation = ops::Activation::silu, .residual = x});
    const NodeId z = b.linear("l2", y, 5, {.bias = bias, .residual = y});
    b.linear("fc", b.linear("l3", z, 5, {.bias = bias, .activation = ops::Activation::tanh, .residual = x}), 3);
    const Model model = b.build();
    Net net(model, Mode::train, 4, DType::f64);
    EXPECT_TRUE(testing::parameter_gradient_error(net, 20) <= 1e-5) << bias;
    Net evaluation(model, Mode::evaluate, 4, DType::f64);
    EXPECT_EQ(evaluation.run(), net.run()) << "there the product is overwritten";
  }
  ModelBuilder b("epilogue", {6});
  EXPECT_THROW(b.linear("l0", b.input(), 5, {.residual = b.input()}), ShapeError);
}

/// Returns two linear layers with an activation between them, fused into the first layer or as its own layer.
Model two_linear_layers(ops::Activation kind, bool within) {
  ModelBuilder b("two", {37});
  NodeId x = b.linear("l0", b.input(), 70, {.activation = within ? kind : ops::Activation::identity});
  if (!within) {
    x = b.activation("a0", x, kind);
  }
  b.linear("fc", x, 3);
  return b.build();
}

/// Returns options in which the choice "reference" computes all matrix products, so that only the calls after the
/// products differ.
PlanOptions with_reference(const Model& model, Mode mode, std::int64_t batch) {
  CpuContext context;
  PlanOptions options;
  const Plan plan(context, testing::on_values(model), mode, batch, options);
  for (const LibraryPlan& library : plan.library_plans()) {
    options.choices[library.key] = "reference";
  }
  return options;
}

/// Returns a Net in f64: in this type, matmul fuses every activation.
Net net_in_f64(const Model& model, Mode mode) {
  return {model, mode, 4, DType::f64, 1};
}

bool calls(const Plan& plan, std::string_view op) {
  return std::any_of(plan.calls().begin(), plan.calls().end(), [&](const Call& call) { return call.op == op; });
}

TEST(Gradient, AnActivationWithinAProductHasTheBitsOfALayerOfItsOwn) {
  Net relu = net_in_f64(two_linear_layers(ops::Activation::relu, true), Mode::train);
  Net apart = net_in_f64(two_linear_layers(ops::Activation::relu, false), Mode::train);
  Net other = net_in_f64(two_linear_layers(ops::Activation::silu, true), Mode::train);
  EXPECT_EQ(relu.run(), apart.run());
  testing::expect_same_bits(relu.parameters().gradients(), apart.parameters().gradients());
  EXPECT_NE(other.run(), relu.run()) << "a control";
  EXPECT_FALSE(testing::has_same_bits(other.parameters().gradients(), relu.parameters().gradients()));
  EXPECT_TRUE(relu.plan().choices().contains("l0 forward relu"));
  EXPECT_TRUE(calls(relu.plan(), "matmul forward relu reference"));
  EXPECT_FALSE(calls(relu.plan(), "linear_epilogue forward"));
  for (const ops::Activation kind : {ops::Activation::relu, ops::Activation::silu}) {
    Net within = net_in_f64(two_linear_layers(kind, true), Mode::evaluate);
    Net behind = net_in_f64(two_linear_layers(kind, false), Mode::evaluate);
    EXPECT_EQ(within.run(), behind.run());
    EXPECT_TRUE(within.plan().choices().contains(concat("l0 forward ", ops::name_of(kind))));
    EXPECT_TRUE(calls(within.plan(), concat("matmul forward ", ops::name_of(kind), " reference")));
    EXPECT_FALSE(calls(within.plan(), "linear_epilogue forward")) << "nothing is kept in evaluation";
  }
}

TEST(Gradient, OfReluNoProductIsKept) {
  constexpr std::int64_t kBatch = 64;
  constexpr int kLayers = 5;
  const auto planned = [&](ops::Activation kind) {
    ModelBuilder b("deep", {37});
    NodeId x = b.input();
    for (int i = 0; i < kLayers; ++i) {
      x = b.linear("l" + std::to_string(i), x, 70, {.activation = kind});
    }
    b.linear("fc", x, 3);
    const Model model = b.build();
    CpuContext context;
    PlanOptions options = with_reference(model, Mode::train, kBatch);
    options.guard_bands = false;
    return Plan(context, model, Mode::train, kBatch, options);
  };
  const Plan relu = planned(ops::Activation::relu);
  const Plan silu = planned(ops::Activation::silu);
  const std::size_t products = kLayers * align_up(kBatch * 70 * sizeof(float), kAlignment);
  EXPECT_EQ(silu.unshared_bytes() - relu.unshared_bytes(), products);
  EXPECT_LE(relu.workspace_bytes() + products / 2, silu.workspace_bytes()) << "most live at once";
}

TEST(Gradient, AttentionThatSeesEverythingOnSequencesOfNumbers) {
  ModelBuilder b("encoder", {4, 5});
  NodeId x = b.attention("attn", b.linear("qkv", b.input(), 18), {.heads = 3});
  x = b.add("add", b.linear("skip", b.input(), 6), x);
  b.linear("fc", x, 3, {.bias = false});
  expect_gradients(b.build(), {.batch = 2});
}

TEST(Gradient, ResidualBranchesShareTheirGradientAndNobodySpoilsIt) {
  // The outputs of the adds have two readers, and the gradients of the layers after an add may overwrite the gradient
  // they read. No branch may get an overwritten gradient.
  ModelBuilder b("branches", {6});
  const NodeId x = b.linear("l0", b.input(), 5);
  const NodeId twice = b.add("twice", x, x);
  const NodeId soft = b.activation("a1", twice, ops::Activation::tanh);
  const NodeId one = b.add("one", soft, b.relu("r1", x));
  const NodeId two = b.add("two", b.layer_norm("n1", one), one);
  const NodeId three = b.add("three", two, b.linear("l1", two, 5));
  const NodeId four = b.add("four", b.input(), b.linear("l2", b.add("both", three, one), 6));
  b.linear("fc", four, 3);
  expect_gradients(b.build(), {.batch = 4});
}

TEST(Gradient, BatchNormOfTheInputLeavesAGradientThatASumPassedOn) {
  ModelBuilder b("passed", {6});
  const NodeId r = b.linear("l0", b.input(), 6);
  const NodeId n = b.batch_norm("bn", b.input(), {.residual = r});
  b.linear("fc", b.add("sum", n, r), 3);
  expect_gradients(b.build(), {.batch = 5});
}

TEST(Gradient, ALastLayerThatReadsItsOutputAgain) {
  ModelBuilder b("positive", {5});
  b.relu("out", b.linear("l0", b.input(), 4));
  expect_gradients(b.build(), {.batch = 6, .plan = kMse});
}

TEST(Gradient, RegressionLosses) {
  for (const Loss loss : {Loss::mse, Loss::l1, Loss::huber}) {
    ModelBuilder b("regression", {5});
    b.linear("out", b.activation("act", b.linear("in", b.input(), 7), ops::Activation::tanh), 3);
    Net net(b.build(), Mode::train, 6, DType::f64, 1, {.loss = loss, .huber_delta = 0.4});
    EXPECT_TRUE(testing::parameter_gradient_error(net, 30) <= 1e-5) << name_of(loss);
    net.scalars().valid = 4;
    EXPECT_TRUE(testing::parameter_gradient_error(net, 30) <= 1e-5) << name_of(loss);
  }
}

TEST(Gradient, LabelSmoothing) {
  expect_gradients(mlp({3, 3, 3}, {6}, 4), {.batch = 5, .samples = 30, .plan = {.label_smoothing = 0.1}});
}

}  // namespace
}  // namespace lockstep::nn
