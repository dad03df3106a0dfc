#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/model/model.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <span>

#include <lockstep/kernels/fill.hpp>
#include <lockstep/nn/batch/step_state.hpp>
#include <lockstep/nn/model/parameter_set.hpp>
#include <lockstep/nn/models/resnet.hpp>
#include <lockstep/nn/plan/plan.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/tensor/copy.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>

#include "tests/support/compare.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/guarded.hpp"

namespace lockstep::nn {
namespace {

using testing::error_of, testing::expect_holds;

// The expected numbers are torchvision's published totals and numbers of parameter tensors.
TEST(Model, ResNetsHaveTorchvisionsCounts) {
  struct Known {
    const char* name;
    std::int64_t parameters;
    std::size_t tensors;
    std::size_t entries;  ///< lines of the state dict, num_batches_tracked included
  };
  for (const Known& known :
       {Known{"resnet18", 11'689'512, 62, 122}, Known{"resnet34", 21'797'672, 110, 218},
        Known{"resnet50", 25'557'032, 161, 320}, Known{"resnet101", 44'549'160, 314, 626},
        Known{"resnet152", 60'192'808, 467, 932}, Known{"resnext50_32x4d", 25'028'904, 161, 320},
        Known{"resnext101_32x8d", 88'791'336, 314, 626}, Known{"wide_resnet50_2", 68'883'240, 161, 320},
        Known{"wide_resnet101_2", 126'886'696, 314, 626}}) {
    const Model model = make_model({.name = known.name, .classes = 1000, .height = 224, .width = 224});
    EXPECT_EQ(model.name(), known.name);
    EXPECT_EQ(model.parameter_count(), known.parameters) << known.name;
    EXPECT_EQ(model.parameters().size(), known.tensors) << known.name;
    EXPECT_EQ(model.parameters().size() + model.buffers().size() / 2 * 3, known.entries) << known.name;
  }
  expect_holds(error_of<UsageError>([] {
                 static_cast<void>(resnet(18, 10, 64, {32, 4}));
               }),
               "32 groups of width 4, expected 1 group of width 64 for depth 18");
  expect_holds(error_of<UsageError>([] {
                 static_cast<void>(resnet(50, 10, 64, {0, 4}));
               }),
               "0 groups of width 4, expected");
  expect_holds(error_of<UsageError>([] { static_cast<void>(make_model({.name = "resnext50"})); }), "resnext50_32x4d");
}

TEST(Model, GroupsOfAConvolution) {
  ModelBuilder builder("net", {8, 8, 6});
  const NodeId x = builder.conv2d("conv", builder.input(), 4, {.pad = 2, .groups = 2, .dilation = 2});
  EXPECT_EQ(builder.shape(x), (Shape{8, 8, 4}));
  builder.linear("head", x, 3);
  const Model model = builder.build();
  EXPECT_EQ(model.layer_texts().at("conv"), "conv2d of input: stride 1, pad 2, groups 2, dilation 2");
  EXPECT_EQ(model.parameters().back().spec.shape, (Shape{4, 3, 3, 3}));
  EXPECT_EQ(model.parameter_count(), 4 * 3 * 9 + 4 * 8 * 8 * 3 + 3);
  const auto refused = [](const Shape& input, std::int64_t channels, const Conv2dOptions& options) {
    return error_of<ShapeError>([&] {
      ModelBuilder b("net", input);
      b.conv2d("conv", b.input(), channels, options);
    });
  };
  expect_holds(refused({8, 8, 6}, 4, {.groups = 4}), "groups is 4, expected a divisor of the 6 channels");
  expect_holds(refused({8, 8, 6}, 4, {.groups = 3}), "of the 4 that it makes");
  expect_holds(refused({8, 8, 6}, 4, {.groups = 0}), "groups 0");
  expect_holds(refused({8, 8, 6}, 4, {.dilation = 0}), "dilation 0");
  expect_holds(refused({8, 8, 3}, 3, {.groups = 3}), "are no padding");
  expect_holds(refused({8, 8, 6}, 4, {.dilation = 5}), "does not fit");
}

// Compares numbers of parameters with He et al. 2015, table 6, to the table's precision. The exact numbers follow from
// a formula for shortcuts of option A.
TEST(Model, CifarResNetsHaveTheirCounts) {
  for (const int depth : {20, 32, 44, 56, 110}) {
    const std::int64_t n = (depth - 2) / 6;
    std::int64_t expected = 3 * 16 * 9 + 2 * 16 + 64 * 10 + 10;
    std::int64_t in = 16;
    for (const std::int64_t c : {16, 32, 64}) {
      expected += in * c * 9 + (2 * n - 1) * c * c * 9 + 2 * n * 2 * c;
      in = c;
    }
    EXPECT_EQ(cifar_resnet(depth).parameter_count(), expected) << depth;
  }
  EXPECT_EQ(cifar_resnet(20).parameter_count(), 269'722);
}

TEST(Model, LayerTextsTellWhatParametersDoNot) {
  const auto texts = [](ops::Activation activation, double epsilon, std::int64_t stride) {
    ModelBuilder builder("net", {8, 8, 4});
    NodeId x = builder.conv2d("conv", builder.input(), 4, {.stride = stride, .pad = 1});
    const NodeId before = x;
    x = builder.batch_norm("norm", x, {.epsilon = epsilon});
    x = builder.relu("relu", x);
    x = builder.add("join", x, before);
    x = builder.relu("relu", x);
    builder.linear("head", x, 3, {.activation = activation});
    return builder.build().layer_texts();
  };
  const auto one = texts(ops::Activation::tanh, 1e-5, 1);
  EXPECT_EQ(one, texts(ops::Activation::tanh, 1e-5, 1));
  EXPECT_EQ(one.size(), 6U);
  EXPECT_EQ(one.at("conv"), "conv2d of input: stride 1, pad 1");
  EXPECT_EQ(one.at("norm"), "batch_norm of conv: epsilon 1e-05, momentum 0.1");
  EXPECT_EQ(one.at("relu"), "relu of norm");
  EXPECT_EQ(one.at("join"), "add of relu, conv");
  EXPECT_EQ(one.at("relu (2)"), "relu of join");
  EXPECT_EQ(one.at("head"), "linear of relu (2): activation tanh");
  EXPECT_EQ(texts(ops::Activation::identity, 1e-5, 1).at("head"), "linear of relu (2)");
  EXPECT_NE(one.at("norm"), texts(ops::Activation::tanh, std::nextafter(1e-5, 1), 1).at("norm"));
  EXPECT_NE(one.at("conv"), texts(ops::Activation::tanh, 1e-5, 2).at("conv"));
}

TEST(Model, NamesAndShapesAreTorchvisions) {
  std::set<std::string> names;
  const auto add = [&](const Model& model) {
    for (const auto& parameter : model.parameters()) {
      names.insert(parameter.spec.name + " " + concat(parameter.spec.shape));
    }
  };
  add(resnet(50));
  for (const char* name : {"conv1.weight (64, 3, 7, 7)", "bn1.weight (64)", "layer1.0.conv1.weight (64, 64, 1, 1)",
                           "layer1.0.downsample.0.weight (256, 64, 1, 1)", "layer1.0.downsample.1.bias (256)",
                           "layer4.2.conv2.weight (512, 512, 3, 3)", "fc.weight (1000, 2048)", "fc.bias (1000)"}) {
    EXPECT_EQ(names.count(name), 1U) << name;
  }
  names.clear();
  add(resnet(50, 1000, 224, {32, 4}));
  add(resnet(50, 1000, 224, {1, 128}));
  for (const char* name : {"layer1.0.conv1.weight (128, 64, 1, 1)", "layer1.0.conv2.weight (128, 4, 3, 3)",
                           "layer1.0.conv2.weight (128, 128, 3, 3)", "layer4.2.conv2.weight (1024, 32, 3, 3)",
                           "layer4.2.conv3.weight (2048, 1024, 1, 1)", "fc.weight (1000, 2048)"}) {
    EXPECT_EQ(names.count(name), 1U) << name;
  }
}

TEST(Model, ReadyOrderIsLastLayerFirst) {
  const Model model = cifar_resnet(20);
  const auto parameters = model.parameters();
  EXPECT_EQ(parameters.front().spec.name, "fc.weight");
  EXPECT_EQ(parameters[1].spec.name, "fc.bias");
  EXPECT_EQ(parameters.back().spec.name, "conv1.weight");
}

TEST(Model, ThreeInputChannelsAreStoredAsFour) {
  CpuContext context;
  const Model model = cifar_resnet(20);
  ParameterSet set(context, model, DType::f32);
  const int conv1 = set.find("conv1.weight");
  EXPECT_EQ(set.value(conv1).shape, (Shape{16, 3, 3, 4}));
  EXPECT_EQ(set.logical(conv1, set.values()).shape, (Shape{16, 3, 3, 3}));
  set.initialise(context, 1);
  const auto stored = set.value(conv1).span<float>();
  double sum = 0;
  for (std::size_t i = 0; i < stored.size(); ++i) {
    if (i % 4 == 3) {
      EXPECT_EQ(stored[i], 0.0F) << "the padding channel";
    } else {
      sum += std::abs(stored[i]);
    }
  }
  EXPECT_GT(sum, 1.0);
}

TEST(Model, LayersThatWouldReadAPaddedChannelAreRefused) {
  ModelBuilder b("padded", {4, 4, 3});
  EXPECT_THROW(b.layer_norm("norm", b.input()), ShapeError);
  EXPECT_THROW(b.activation("sigmoid", b.input(), ops::Activation::sigmoid), ShapeError);
  const NodeId x = b.activation("tanh", b.input(), ops::Activation::tanh);  // tanh keeps a padding channel of zeros
  b.conv2d("c1", x, 5);
  EXPECT_EQ(b.build().parameter_count(), 5 * 3 * 9);
}

TEST(ParameterSet, ArenaIsAlignedPaddedWithZerosAndSeeded) {
  CpuContext context;
  const Model model = mlp({5, 5, 3}, {7}, 3);
  ParameterSet a(context, model, DType::f32);
  ParameterSet b(context, model, DType::f32);
  a.initialise(context, 3);
  b.initialise(context, 3);
  std::int64_t end = 0;
  for (const ParameterInfo& info : a.parameters()) {
    EXPECT_GE(info.offset, end);
    EXPECT_EQ(info.offset * 4 % static_cast<std::int64_t>(kAlignment), 0);
    for (std::int64_t i = end; i < info.offset; ++i) {
      EXPECT_EQ(a.values().as<float>()[i], 0.0F);
    }
    end = info.offset + info.numel;
  }
  const auto va = a.values().span<float>();
  EXPECT_TRUE(std::equal(va.begin(), va.end(), b.values().span<float>().begin()));
  b.initialise(context, 4);
  EXPECT_FALSE(std::equal(va.begin(), va.end(), b.values().span<float>().begin())) << "another seed, other numbers";
}

TEST(ParameterSet, ArenasMayBeTheHostsMemory) {
  CpuContext context;
  const Model model = cifar_resnet(8);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    const ParameterArenaBytes bytes = parameter_arena_bytes(model, dtype);
    EXPECT_EQ(bytes.weights > 0, dtype == DType::bf16);
    EXPECT_GT(bytes.buffers, 0U);
    const std::size_t all = bytes.values + bytes.gradients + bytes.weights + bytes.buffers + bytes.evaluation_buffers;
    const Buffer block(all + kAlignment, context);  // a canary follows the memory
    std::memset(block.data(), 0x5A, block.bytes());
    std::size_t at = 0;
    const auto take = [&](std::size_t size) {
      const TensorView view(block.data() + at, DType::u8, Device::cpu(), {static_cast<std::int64_t>(size)});
      at += size;
      return size > 0 ? view : TensorView();
    };
    ParameterArenas lent{.values = take(bytes.values),
                         .gradients = take(bytes.gradients),
                         .weights = take(bytes.weights),
                         .buffers = take(bytes.buffers),
                         .evaluation_buffers = take(bytes.evaluation_buffers)};
    HostMemoryResource memory;
    TrackingMemoryResource tracking(memory);
    {
      ParameterSet theirs(context, model, dtype, {.memory = &tracking, .lent = lent});
      ParameterSet own(context, model, dtype);
      EXPECT_EQ(tracking.counts().bytes_in_use, 0U);
      EXPECT_EQ(theirs.values().data, lent.values.data);
      EXPECT_EQ(theirs.values().bytes(), bytes.values);
      EXPECT_EQ(theirs.weights().data, dtype == DType::bf16 ? lent.weights.data : lent.values.data);
      EXPECT_EQ(theirs.buffer_arena().data, lent.buffers.data);
      EXPECT_EQ(theirs.bytes(), own.bytes());
      const auto expect_same = [](const TensorView& a, const TensorView& b) {
        ASSERT_EQ(a.bytes(), b.bytes());
        EXPECT_EQ(std::memcmp(a.data, b.data, a.bytes()), 0);
      };
      for (int round = 0; round < 2; ++round) {  // first round: zeros of new memory; second round: initialised values
        expect_same(theirs.values(), own.values());
        expect_same(theirs.gradients(), own.gradients());
        expect_same(theirs.weights(), own.weights());
        expect_same(theirs.buffer_arena(), own.buffer_arena());
        expect_same(theirs.evaluation_buffer_arena(), own.evaluation_buffer_arena());
        theirs.initialise(context, 3);
        own.initialise(context, 3);
      }
    }
    EXPECT_TRUE(std::all_of(block.data() + all, block.data() + block.bytes(),
                            [](std::byte b) { return b == std::byte{0x5A}; }));
    const auto make = [&] { const ParameterSet set(context, model, dtype, {.memory = &tracking, .lent = lent}); };
    const ParameterArenas good = lent;
    lent.gradients = good.gradients.slice(0, 0, static_cast<std::int64_t>(bytes.gradients) - 1);
    EXPECT_EQ(error_of<ShapeError>(make), concat("parameters: the memory lent for gradients has ", bytes.gradients - 1,
                                                 " bytes, expected at least ", bytes.gradients));
    lent = good;
    lent.buffers.device = Device::cuda(0);
    EXPECT_EQ(error_of<DeviceError>(make), "parameters: the memory lent for buffers is on cuda:0, expected cpu");
    lent = good;
    lent.evaluation_buffers = good.buffers;
    EXPECT_EQ(error_of<ShapeError>(make),
              "parameters: the memory lent for buffers and that for evaluation_buffers overlap, expected memory of its "
              "own for each");
    lent = good;
    lent.values = TensorView(block.data() + 64, DType::u8, Device::cpu(), {static_cast<std::int64_t>(bytes.values)});
    const std::string text = error_of<ShapeError>(make);
    EXPECT_EQ(text.find("parameters: the memory lent for values begins at address 0x"), 0U) << text;
    expect_holds(text, ", expected one aligned to 256 bytes");
    EXPECT_EQ(tracking.counts().bytes_in_use, 0U);
  }
}

TEST(Plan, TheWorkspaceMayBeTheHostsMemory) {
  CpuContext context({.threads = 1});
  const Model model = mlp({4, 4, 3}, {9}, 3).reading(InputKind::values);
  const PlanOptions options;
  ParameterSet parameters(context, model, DType::f32);
  parameters.initialise(context, 5);
  StepState state(context, 2, step_layout(model, options));
  Plan plan(context, model, Mode::infer, 2, options);
  const std::size_t bytes = plan.workspace_bytes();
  const Buffer owned(bytes, context);
  plan.bind(parameters, state, owned);
  plan.run(context);
  const auto first = plan.output().span<float>();
  const std::vector<float> expected(first.begin(), first.end());

  const Buffer block(bytes + 2 * kAlignment, context);
  std::memset(block.data(), 0x5A, block.bytes());
  const auto view = [&](std::size_t offset, std::size_t size) {
    return TensorView(block.data() + offset, DType::u8, Device::cpu(), {static_cast<std::int64_t>(size)});
  };
  plan.bind(parameters, state, view(kAlignment, bytes));
  plan.run(context);
  const auto second = plan.output().span<float>();
  EXPECT_EQ(std::vector<float>(second.begin(), second.end()), expected);
  EXPECT_GE(static_cast<const std::byte*>(plan.output().data), block.data() + kAlignment);
  const auto untouched = [](std::byte b) { return b == std::byte{0x5A}; };
  EXPECT_TRUE(std::all_of(block.data(), block.data() + kAlignment, untouched));
  EXPECT_TRUE(std::all_of(block.data() + kAlignment + bytes, block.data() + block.bytes(), untouched));

  const auto bind = [&](const TensorView& memory) { return [&, memory] { plan.bind(parameters, state, memory); }; };
  EXPECT_EQ(error_of<ShapeError>(bind(view(0, bytes - 1))),
            concat("plan: workspace has ", bytes - 1, " bytes, expected at least ", bytes));
  const std::string text = error_of<ShapeError>(bind(view(32, bytes)));
  EXPECT_EQ(text.find("plan: workspace begins at address 0x"), 0U) << text;
  expect_holds(text, ", expected one aligned to 256 bytes");
  TensorView elsewhere = view(0, bytes);
  elsewhere.device = Device::cuda(1);
  EXPECT_EQ(error_of<DeviceError>(bind(elsewhere)), "plan: workspace is on cuda:1, expected cpu");
  plan.run(context);  // the refused calls of bind() have changed nothing
}

TEST(ParameterSet, ReadAndWriteByName) {
  CpuContext context;
  ModelBuilder builder("small", {4, 4, 3});
  builder.conv2d("conv", builder.input(), 2, {.bias = true});
  const Model model = builder.build();
  ParameterSet set(context, model, DType::f32);
  const Shape dims{2, 3, 3, 3};
  const Tensor written = Tensor::arange(context, 1, 55, 1, DType::f64);
  set.write(context, "conv.weight", written.view().reshape(dims));
  // Reads in another type and order. The stored tensor has other axes and a padding channel, which stays zero.
  const Tensor read = Tensor::zeros(context, Shape{3, 3, 3, 2}, DType::i32);
  set.read(context, "conv.weight", read.view().permute({3, 2, 1, 0}));
  EXPECT_EQ(read.view().as<std::int32_t>()[0], 1);
  EXPECT_EQ(read.view().as<std::int32_t>()[1], 1 + 27);
  EXPECT_EQ(read.view().as<std::int32_t>()[2], 1 + 9);
  EXPECT_EQ(read.view().as<std::int32_t>()[53], 54);
  const auto stored = set.value(set.find("conv.weight")).span<float>();
  ASSERT_EQ(stored.size(), 72U);
  float sum = 0;
  for (std::size_t i = 0; i < stored.size(); ++i) {
    EXPECT_TRUE(i % 4 != 3 || stored[i] == 0.0F) << "the padding channel";
    sum += stored[i];
  }
  EXPECT_EQ(sum, 54 * 55 / 2);
  // The write of conv.weight must not have changed conv.bias.
  std::vector<float> bias(2, 7.0F);
  set.read(context, "conv.bias", TensorView(std::span(bias), Shape{2}));
  EXPECT_EQ(bias, (std::vector<float>{0, 0}));

  const TensorView two{std::span(bias), Shape{2}};
  EXPECT_THROW(set.read(context, "conv.weigth", two), UsageError);
  EXPECT_THROW(set.write(context, "conv.weigth", two), UsageError);
  EXPECT_THROW(set.read(context, "conv.weight", two), ShapeError);
  EXPECT_THROW(set.write(context, "conv.bias", two.reshape(Shape{2, 1})), ShapeError);
  const TensorView elsewhere(nullptr, DType::f32, Device::cuda(0), Shape{2});
  EXPECT_THROW(set.write(context, "conv.bias", elsewhere), DeviceError);
  EXPECT_THROW(set.read(context, "conv.bias", elsewhere), DeviceError);
}

TEST(ParameterSet, BesidePlansIn16BitsTheMasterIsF32AndWeightsAreItsRoundedCopy) {
  CpuContext context;
  const Model model = cifar_resnet(8, 3, 8, 8);
  ParameterSet plain(context, model, DType::f32);
  plain.initialise(context, 3);
  EXPECT_FALSE(plain.rounds());
  EXPECT_EQ(plain.weights().data, plain.values().data);
  EXPECT_EQ(plain.weight(1).data, plain.value(1).data);
  for (const DType dtype : {DType::bf16, DType::f16, DType::f64}) {
    ParameterSet set(context, model, dtype);
    const DType master = dtype == DType::f64 ? DType::f64 : DType::f32;
    EXPECT_EQ(set.dtype(), master);
    for (const TensorView& view : {set.values(), set.gradients(), set.add_state(context, "state"), set.buffer_arena(),
                                   set.evaluation_buffer_arena()}) {
      EXPECT_EQ(view.dtype, master);
    }
    EXPECT_EQ(set.weights().dtype, dtype);
    ASSERT_EQ(set.numel(), plain.numel()) << "one layout for all types";
    for (std::size_t i = 0; i < plain.parameters().size(); ++i) {
      EXPECT_EQ(set.parameters()[i].offset, plain.parameters()[i].offset);
      const auto address = reinterpret_cast<std::uintptr_t>(set.weight(static_cast<int>(i)).data);
      EXPECT_EQ(address % kAlignment, 0U);
    }
    if (dtype == DType::f64) {
      continue;
    }
    EXPECT_EQ(set.bytes(), plain.bytes() + set.weights().bytes() + set.values().bytes()) << "copy and state";
    const auto expect_rounded = [&] {
      const Tensor rounded = Tensor::empty(context, set.values().shape, dtype);
      copy_now(context, set.values(), rounded.view());
      testing::expect_same_bits(set.weights(), rounded.view());
    };
    set.initialise(context, 3);
    testing::expect_same_bits(set.values(), plain.values());
    expect_rounded();
    std::vector<float> scale(16, 1.0F + 1.0F / 1024);  // f16 holds this number, bf16 does not
    set.write(context, "bn1.weight", TensorView(std::span(scale), Shape{16}));
    expect_rounded();
    const int bn1 = set.find("bn1.weight");
    EXPECT_EQ(testing::to_doubles(set.weight(bn1))[3], dtype == DType::f16 ? 1 + 1.0 / 1024 : 1);
    ops::fill(context, 0.3, set.values());
    EXPECT_FALSE(testing::is_close(set.weights(), set.values(), 0.1)) << "nobody has rounded them";
    set.round_weights(context);
    expect_rounded();
  }
}

TEST(ParameterSet, GroupsLeaveNormAndBiasUndecayed) {
  CpuContext context;
  const Model model = cifar_resnet(20);
  ParameterSet all(context, model, DType::f32, {.weight_decay = 0.1, .decay_all = true});
  EXPECT_EQ(all.segments().size(), 1U);
  ParameterSet some(context, model, DType::f32, {.weight_decay = 0.1, .decay_all = false});
  for (const ParameterInfo& info : some.parameters()) {
    for (const ops::ArenaSegment& segment : some.segments()) {
      if (info.offset >= segment.offset && info.offset < segment.offset + segment.count) {
        EXPECT_EQ(segment.weight_decay, info.spec.role == ParameterRole::weight ? 0.1 : 0) << info.spec.name;
      }
    }
  }
}

TEST(Model, BadRequestsNameTheValue) {
  EXPECT_THROW((void)resnet(42), UsageError);
  EXPECT_THROW((void)cifar_resnet(21), UsageError);
  EXPECT_THROW((void)make_model({.name = "vgg"}), UsageError);
  EXPECT_THROW((void)make_model({.name = "resnet20", .hidden = {3}}), UsageError);
  EXPECT_THROW((void)mlp({4}, {std::int64_t{1} << 62}, 2), UsageError);
  EXPECT_THROW((void)mlp({4}, {0}, 2), UsageError);
  EXPECT_THROW((void)mlp({4}, std::vector<std::int64_t>(10'001, 1), 2), UsageError);
  ModelBuilder builder("m", {8, 8, 3});
  EXPECT_THROW((void)builder.conv2d("c", builder.input(), 4, {.kernel = 11}), ShapeError);
}

TEST(Model, AsManyParametersAsCanBeCounted) {
  const auto sizes = [](std::int64_t first, std::int64_t second) {
    ModelBuilder builder("m", {first});
    builder.linear("1", builder.input(), second, {.bias = false});
    return builder.build().parameter_count();
  };
  constexpr std::int64_t kHalf = std::int64_t{1} << 28;
  EXPECT_EQ(sizes(kHalf, kHalf), std::int64_t{1} << 56);
  expect_holds(error_of<ShapeError>([&] { (void)sizes(kHalf, kHalf + 1); }),
               "expected at most 72057594037927936 values in all parameters");
  EXPECT_THROW((void)sizes(std::int64_t{1} << 40, std::int64_t{1} << 40), ShapeError);
}

TEST(Model, LayersOfOneNameHaveOneSetOfBuffers) {
  ModelBuilder builder("m", {4});
  NodeId x = builder.batch_norm("bn", builder.input());
  builder.batch_norm("bn", x);
  const std::vector<BufferSpec> buffers = builder.build().buffers();
  ASSERT_EQ(buffers.size(), 2U);
  EXPECT_EQ(buffers[0].name, "bn.running_mean");
  EXPECT_EQ(buffers[1].name, "bn.running_var");
}

TEST(Model, ALayerHasANameThatFilesTake) {
  for (const std::string& name : {std::string("a\nb"), std::string("\xff"), std::string(1001, 'a')}) {
    ModelBuilder builder("m", {4});
    expect_holds(error_of<UsageError>([&] { builder.linear(name, builder.input(), 2); }),
                 "expected a name of UTF-8 without control characters");
  }
  ModelBuilder builder("m", {4});
  EXPECT_NO_THROW(builder.linear("Schicht \u00fc" + std::string(900, 'a'), builder.input(), 2));
}

/// A linear layer that counts the calls of parameters().
class Counting final : public Layer {
 public:
  Counting(const std::string& name, int& asked) : Layer(name), asked_(asked) {
    ModelBuilder builder("m", {4});
    builder.linear(name, builder.input(), 4);
    linear_ = builder.build().nodes().back().layer;
  }
  std::string kind() const override { return "counting"; }
  Shape output_shape(std::span<const Shape> inputs) const override { return linear_->output_shape(inputs); }
  std::vector<ParameterSpec> parameters(std::span<const Shape> inputs) const override {
    ++asked_;
    return linear_->parameters(inputs);
  }
  void plan(PlanBuilder& builder) const override { linear_->plan(builder); }

 private:
  std::shared_ptr<const Layer> linear_;
  int& asked_;
};

// The number of parameters() calls must grow like the number of layers. If the plan called parameters() of all layers
// once for each layer, planning 2,500 layers would take eight minutes.
TEST(Plan, ManyLayersAreListedAFewTimesNotOnceForEach) {
  const auto asked = [](int layers) {
    int count = 0;
    ModelBuilder builder("m", {4});
    NodeId x = builder.input();
    for (int i = 0; i < layers; ++i) {
      x = builder.add(std::make_shared<Counting>(std::to_string(i), count), {x});
    }
    const Model model = builder.build();
    CpuContext context({.threads = 1});
    const Plan plan(context, model, Mode::train, 2);
    return count;
  };
  EXPECT_EQ(asked(40), 2 * asked(20));
  EXPECT_LE(asked(20), 20 * 10);
}

}  // namespace
}  // namespace lockstep::nn
