// Tests the network of airbench94. Compares its outputs with plain loops in f64, and tests its parameters and their
// initial values.
#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/models/airbench.hpp>

#include <algorithm>
#include <map>

#include <lockstep/nn/models/resnet.hpp>

#include "tests/nn/net.hpp"
#include "tests/support/error_of.hpp"

namespace lockstep::nn {
namespace {

using testing::error_of, testing::expect_holds;

/// Images of shape (N, C, H, W).
struct Planes {
  std::int64_t n = 0, c = 0, h = 0, w = 0;
  std::vector<double> values;
  Planes(std::int64_t images, std::int64_t channels, std::int64_t height, std::int64_t width)
      : n(images), c(channels), h(height), w(width), values(static_cast<std::size_t>(n * c * h * w)) {}
  double& at(std::int64_t i, std::int64_t k, std::int64_t y, std::int64_t x) {
    return values[static_cast<std::size_t>(((i * c + k) * h + y) * w + x)];
  }
  [[nodiscard]] double get(std::int64_t i, std::int64_t k, std::int64_t y, std::int64_t x) const {
    return y < 0 || x < 0 || y >= h || x >= w ? 0 : values[static_cast<std::size_t>(((i * c + k) * h + y) * w + x)];
  }
};

Planes conv(const Planes& in, const std::vector<double>& weight, std::int64_t channels, std::int64_t side,
            std::int64_t pad) {
  Planes out(in.n, channels, in.h + 2 * pad - side + 1, in.w + 2 * pad - side + 1);
  for (std::int64_t i = 0; i < in.n; ++i) {
    for (std::int64_t k = 0; k < channels; ++k) {
      for (std::int64_t y = 0; y < out.h; ++y) {
        for (std::int64_t x = 0; x < out.w; ++x) {
          for (std::int64_t at = 0; at < in.c * side * side; ++at) {
            out.at(i, k, y, x) += weight[static_cast<std::size_t>(k * in.c * side * side + at)] *
                                  in.get(i, at / side / side, y - pad + at / side % side, x - pad + at % side);
          }
        }
      }
    }
  }
  return out;
}

Planes pool(const Planes& in, std::int64_t side) {
  Planes out(in.n, in.c, in.h / side, in.w / side);
  for (std::int64_t i = 0; i < in.n; ++i) {
    for (std::int64_t k = 0; k < in.c; ++k) {
      for (std::int64_t y = 0; y < out.h; ++y) {
        for (std::int64_t x = 0; x < out.w; ++x) {
          double most = -1e300;
          for (std::int64_t at = 0; at < side * side; ++at) {
            most = std::max(most, in.get(i, k, y * side + at / side, x * side + at % side));
          }
          out.at(i, k, y, x) = most;
        }
      }
    }
  }
  return out;
}

/// Replaces every value by f(channel, value).
template <class F>
void each(Planes& planes, F f) {
  for (std::size_t i = 0; i < planes.values.size(); ++i) {
    const auto channel = static_cast<std::size_t>(static_cast<std::int64_t>(i) / (planes.h * planes.w) % planes.c);
    planes.values[i] = f(channel, planes.values[i]);
  }
}

double gelu(double x) {
  return x * 0.5 * std::erfc(-x / std::sqrt(2.0));
}

using Values = std::map<std::string, std::vector<double>>;

/// Sets all parameters and running statistics to different numbers, and returns them by name.
Values randomise(testing::Net& net) {
  Values all;
  Random random(11, RandomUse::test);
  ParameterSet& set = net.parameters();
  for (const ParameterInfo& info : set.parameters()) {
    std::vector<double>& values = all[info.spec.name];
    values.resize(static_cast<std::size_t>(info.spec.dims.numel()));
    const bool scale = info.spec.role == ParameterRole::norm_weight;
    std::generate(values.begin(), values.end(), [&] { return (scale ? 1 : 0) + 0.3 * random.normal(); });
    set.write(net.context(), info.spec.name, TensorView(std::span(values), info.spec.dims));
  }
  for (const BufferSpec& spec : set.buffers()) {
    std::vector<double>& values = all[spec.name];
    values.resize(static_cast<std::size_t>(spec.shape.numel()));
    const bool variance = spec.name.ends_with("running_var");
    std::generate(values.begin(), values.end(), [&] { return variance ? 0.5 + random.uniform() : random.normal(); });
    set.write_buffer(net.context(), spec.name, TensorView(std::span(values), spec.shape));
  }
  return all;
}

TEST(Airbench, ComputesWhatThePaperDescribes) {
  const AirbenchOptions options{.classes = 5, .height = 25, .width = 51, .widths = {5, 3, 7}, .logit_scale = 0.25};
  testing::Net net(airbench94(options), Mode::infer, 2, DType::f64);
  const Values values = randomise(net);
  const TensorView input = net.state().view(StateField::values);
  ASSERT_EQ(input.shape, (Shape{2, 25, 51, 4}));
  Planes x(2, 3, 25, 51);
  for (std::int64_t i = 0; i < input.numel(); ++i) {
    if (i % 4 < 3) {
      x.at(i / 4 / 51 / 25, i % 4, i / 4 / 51 % 25, i / 4 % 51) = input.span<double>()[static_cast<std::size_t>(i)];
    }
  }
  x = conv(x, values.at("whiten.weight"), 24, 2, 0);
  each(x, [&](std::size_t k, double value) { return gelu(value + values.at("whiten.bias")[k]); });
  for (std::size_t group = 0; group < 3; ++group) {
    const std::string name = "group" + std::to_string(group + 1);
    const auto norm = [&](const std::string& norm_name) {
      each(x, [&](std::size_t k, double value) {
        const auto of = [&](const char* what) { return values.at(name + norm_name + what)[k]; };
        return gelu((value - of(".running_mean")) / std::sqrt(of(".running_var") + 1e-12) * of(".weight") +
                    of(".bias"));
      });
    };
    x = pool(conv(x, values.at(name + ".conv1.weight"), options.widths[group], 3, 1), 2);
    norm(".norm1");
    x = conv(x, values.at(name + ".conv2.weight"), options.widths[group], 3, 1);
    norm(".norm2");
  }
  x = pool(x, 3);
  ASSERT_EQ(x.h, 1);
  ASSERT_EQ(x.w, 2);
  net.run();
  const std::vector<double> got = testing::to_doubles(net.plan().output());
  ASSERT_EQ(got.size(), 10U);
  for (std::int64_t i = 0; i < 2; ++i) {
    for (std::int64_t k = 0; k < 5; ++k) {
      double logit = 0;
      for (std::int64_t at = 0; at < 14; ++at) {
        logit += values.at("head.weight")[static_cast<std::size_t>(k * 14 + at)] * x.get(i, at / 2, 0, at % 2);
      }
      EXPECT_NEAR(got[static_cast<std::size_t>(i * 5 + k)], 0.25 * logit, 1e-11) << i << ' ' << k;
    }
  }
}

TEST(Airbench, HasTheParametersOfThePaperAndTrainsSomeOfThem) {
  const Model model = make_model({.name = "airbench94"});
  EXPECT_EQ(model.name(), "airbench94");
  EXPECT_EQ(model.parameter_count(), 1'972'792);
  std::int64_t frozen = 0;
  for (const Model::Parameter& parameter : model.parameters()) {
    const std::string& name = parameter.spec.name;
    const bool expected = name != "whiten.weight" && name.find("norm1.weight") == std::string::npos &&
                          name.find("norm2.weight") == std::string::npos;
    EXPECT_EQ(parameter.spec.trainable, expected) << name;
    frozen += expected ? 0 : parameter.spec.shape.numel();
  }
  EXPECT_EQ(frozen, 24 * 12 + 2 * (64 + 256 + 256));
  const auto texts = model.layer_texts();
  EXPECT_EQ(texts.at("whiten"), "conv2d of input: stride 1, pad 0");
  EXPECT_EQ(texts.at("group2.norm1"), "batch_norm of group2.pool: epsilon 1e-12, momentum 0.4");
  EXPECT_EQ(texts.at("scale"), "scale of head: factor 0.1111111111111111");
}

TEST(Airbench, GradientsAreThoseOfTheLoss) {
  const AirbenchOptions options{.classes = 3, .height = 25, .width = 26, .widths = {2, 3, 2}};
  testing::CheckedNet net(airbench94(options), Mode::train, 3, DType::f64);
  EXPECT_EQ(net.parameters().trainable().size(), 14U) << "a bias and a head, two convolutions and two biases a group";
  EXPECT_LE(testing::parameter_gradient_error(net, 5), 1e-5);
  EXPECT_GT(testing::parameter_gradient_error(net, 5, 1.001), 1e-5);
}

TEST(Airbench, RefusesWhatThePoolsLeaveNothingOf) {
  EXPECT_NO_THROW(static_cast<void>(airbench94({.height = 25, .width = 25})));
  expect_holds(error_of<UsageError>([] { static_cast<void>(airbench94({.height = 24})); }),
               "images are 24 x 32, expected at least 25 pixels a side");
  expect_holds(error_of<UsageError>([] { static_cast<void>(airbench94({.classes = 0})); }), "classes is 0");
  expect_holds(error_of<UsageError>([] {
                 static_cast<void>(airbench94({.widths = {64, 0, 256}}));
               }),
               "the width of group2 is 0, expected at least 1");
  expect_holds(
      error_of<UsageError>([] { static_cast<void>(make_model({.name = "airbench94", .zero_init_residual = true})); }),
      "zero_init_residual is on for airbench94");
  expect_holds(error_of<UsageError>([] { static_cast<void>(make_model({.name = "airbench94", .hidden = {3}})); }),
               "model airbench94 is given hidden sizes, expected none");
}

/// Returns the values of a parameter after its initialisation with `seed`.
std::vector<double> begun(const Model& model, const std::string& name, std::uint64_t seed = 1) {
  CpuContext context;
  ParameterSet set(context, model, DType::f64);
  set.initialise(context, seed);
  const ParameterInfo& info = set.parameters()[static_cast<std::size_t>(set.find(name))];
  std::vector<double> values(static_cast<std::size_t>(info.spec.dims.numel()));
  set.read(context, name, TensorView(std::span(values), info.spec.dims));
  return values;
}

TEST(ConvInit, TheFirstFiltersAreTheIdentityTheOthersUniform) {
  struct Case {
    int axes;
    std::int64_t in, out, side;
  };
  for (const Case& c : {Case{2, 5, 12, 3}, Case{2, 3, 3, 2}, Case{2, 6, 4, 1}, Case{1, 4, 9, 5}, Case{3, 2, 5, 3}}) {
    ModelBuilder builder("net", c.axes == 1 ? Shape{9, c.in} : c.axes == 2 ? Shape{9, 8, c.in} : Shape{5, 4, 6, c.in});
    const ConvOptions options{.kernel = c.side, .bias = true, .init = ConvInit::identity};
    const NodeId x = c.axes == 1   ? builder.conv1d("c", builder.input(), c.out, options)
                     : c.axes == 2 ? builder.conv2d("c", builder.input(), c.out, options)
                                   : builder.conv3d("c", builder.input(), c.out, options);
    builder.linear("fc", x, 2);
    const Model model = builder.build();
    const std::vector<double> weight = begun(model, "c.weight");
    const auto positions = static_cast<std::int64_t>(std::pow(c.side, c.axes));
    const double bound = 1 / std::sqrt(static_cast<double>(c.in * positions));
    double sum = 0;
    std::int64_t others = 0;
    for (std::int64_t k = 0; k < c.out; ++k) {
      for (std::int64_t channel = 0; channel < c.in; ++channel) {
        for (std::int64_t at = 0; at < positions; ++at) {
          const double value = weight[static_cast<std::size_t>((k * c.in + channel) * positions + at)];
          if (k < c.in) {
            // The middle of a kernel of two taps is the second tap.
            const bool middle = at == (c.side % 2 == 1 ? positions / 2 : positions - 1);
            EXPECT_EQ(value, channel == k && middle ? 1 : 0) << c.axes << ' ' << k << ' ' << channel << ' ' << at;
          } else {
            EXPECT_LT(std::abs(value), bound);
            sum += value * value;
            ++others;
          }
        }
      }
    }
    if (others > 100) {
      EXPECT_NEAR(sum / static_cast<double>(others), bound * bound / 3, bound * bound * 0.1);
      EXPECT_NE(weight, begun(model, "c.weight", 2));
    }
    EXPECT_EQ(begun(model, "c.bias"), std::vector<double>(static_cast<std::size_t>(c.out), 0.0));
  }
  expect_holds(error_of<UsageError>([] {
                 ModelBuilder builder("net", {9, 8, 4});
                 builder.conv2d("c", builder.input(), 4, {.groups = 2, .init = ConvInit::identity});
               }),
               "layer c has 2 groups and begins as the identity, expected 1 group");
}

TEST(BeginningWith, AParameterHasTheGivenValuesForEverySeedAndType) {
  const Model model = airbench94({.widths = {3, 4, 5}});
  std::vector<double> values(24 * 12);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = 0.5 * static_cast<double>(i) - 3;
  }
  const Model given = model.with_initial_value("whiten.weight", values);
  for (const std::uint64_t seed : {1, 2}) {
    EXPECT_EQ(begun(given, "whiten.weight", seed), values);
  }
  EXPECT_NE(begun(model, "whiten.weight"), values) << "the model itself is as before";
  EXPECT_EQ(begun(given, "group1.conv1.weight"), begun(model, "group1.conv1.weight"));
  EXPECT_EQ(given.freezing("head").parameters().back().beginning.values == nullptr, false) << "whiten.weight is last";

  values.pop_back();
  expect_holds(error_of<UsageError>([&] { static_cast<void>(model.with_initial_value("whiten.weight", values)); }),
               "287 values are given for parameter whiten.weight of shape (24, 3, 2, 2), expected 288");
  values.push_back(NAN);
  expect_holds(error_of<UsageError>([&] { static_cast<void>(model.with_initial_value("whiten.weight", values)); }),
               "a value given for parameter whiten.weight is nan, expected finite numbers");
  expect_holds(error_of<UsageError>([&] { static_cast<void>(model.with_initial_value("whiten", values)); }),
               "there is no parameter 'whiten' to begin with given values");
}

TEST(Scale, TimesAConstantInEveryType) {
  for (const double factor : {0.25, -3.0, 0.0}) {
    ModelBuilder builder("net", {6});
    const NodeId x = builder.scale("s0", builder.input(), factor);
    builder.scale("s1", builder.linear("fc", builder.add("sum", x, builder.input()), 3), 2);
    testing::CheckedNet net(builder.build(), Mode::train, 4, DType::f64);
    EXPECT_LE(testing::parameter_gradient_error(net, 20), 1e-6) << factor;
  }
  const auto output = [](DType dtype) {
    ModelBuilder builder("net", {3, 5, 4});
    builder.scale("s", builder.conv2d("c", builder.input(), 5, {.kernel = 1}), 0.5);
    testing::Net net(builder.build(), Mode::infer, 2, dtype);
    net.run();
    return testing::to_doubles(net.plan().output());
  };
  const std::vector<double> exact = output(DType::f64);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const std::vector<double> got = output(dtype);
    for (std::size_t i = 0; i < exact.size(); ++i) {
      EXPECT_NEAR(got[i], exact[i], (dtype == DType::f32 ? 1e-5 : 0.05) * (1 + std::abs(exact[i])));
    }
  }
  for (const double factor : {static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
    expect_holds(error_of<UsageError>([&] {
                   ModelBuilder builder("net", {6});
                   builder.scale("s", builder.input(), factor);
                 }),
                 "s: factor is ");
  }
}

}  // namespace
}  // namespace lockstep::nn
