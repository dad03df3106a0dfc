// Tests ResNet-18, ResNet-50, ResNeXt-50 and Wide-ResNet-50 against torchvision, for weights from a hash that both
// sides compute (golden/torch_logits.py).
#include <algorithm>
#include <array>

#include <lockstep/nn/models/resnet.hpp>
#include <lockstep/runtime/tensor/copy.hpp>

#include "tests/nn/models/golden/torch_logits.inc"
#include "tests/nn/net.hpp"

namespace lockstep::nn {
namespace {

constexpr std::int64_t kBatch = 2;

/// Returns n numbers in [-1, 1) that follow from the name, as uniform() of torch_logits.py does.
std::vector<double> uniform(const std::string& name, std::int64_t n) {
  std::uint32_t seed = 2166136261U;
  for (const char c : name) {
    seed = (seed ^ static_cast<unsigned char>(c)) * 16777619U;
  }
  std::vector<double> values(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint32_t x = static_cast<std::uint32_t>(i) * 2654435761U + seed;
    x ^= x >> 16;
    x *= 0x85EBCA6BU;
    x ^= x >> 13;
    x *= 0xC2B2AE35U;
    x ^= x >> 16;
    values[i] = static_cast<double>(x >> 8) / 8388608.0 - 1.0;
  }
  return values;
}

/// Returns the values of a tensor of the state dict, as value() of torch_logits.py does.
std::vector<float> value(const std::string& name, const Shape& shape) {
  const std::vector<double> u = uniform(name, shape.numel());
  std::vector<float> v(u.size());
  const auto fill = [&](double offset, double scale) {
    std::transform(u.begin(), u.end(), v.begin(), [&](double x) { return static_cast<float>(offset + scale * x); });
  };
  if (name.ends_with("running_var")) {
    fill(1.0, 0.5);
  } else if (name.ends_with("running_mean") || name.ends_with("bias")) {
    fill(0.0, 0.1);
  } else if (shape.rank() == 1) {
    fill(1.0, 0.25);
  } else {
    fill(0.0, std::sqrt(3.0 / (static_cast<double>(shape.numel()) / static_cast<double>(shape[0]))));
  }
  return v;
}

/// Returns testing::relative_error of every 25th logit of both samples, compared with torchvision's. `permuted`
/// exchanges the weights of two kernel columns of the stem: a wrong layout that only changes the order.
double logits_error(const Model& model, std::span<const double> expected, bool permuted = false) {
  testing::Net net(model, Mode::infer, kBatch, DType::f32, 2);
  CpuContext& context = net.context();
  ParameterSet& set = net.parameters();
  for (std::size_t i = 0; i < set.parameters().size(); ++i) {
    const ParameterSpec& spec = set.parameters()[i].spec;
    std::vector<float> values = value(spec.name, spec.shape);
    if (permuted && spec.name == "conv1.weight") {
      for (std::size_t row = 0; row < values.size(); row += 7) {
        std::swap(values[row], values[row + 1]);
      }
    }
    copy(context, TensorView(std::span<float>(values), spec.dims), set.logical(static_cast<int>(i), set.values()));
  }
  for (std::size_t i = 0; i < set.buffers().size(); ++i) {
    const BufferSpec& spec = set.buffers()[i];
    std::vector<float> values = value(spec.name, spec.shape);
    copy(context, TensorView(std::span<float>(values), spec.shape), set.evaluation_buffer(static_cast<int>(i)));
  }
  std::vector<float> image = value("input.data", {kBatch, 3, 224, 224});
  for (float& pixel : image) {
    pixel *= static_cast<float>(std::sqrt(150528.0 / 3.0));
  }
  const TensorView nchw(std::span<float>(image), {kBatch, 3, 224, 224});
  copy(context, nchw.permute({0, 2, 3, 1}), net.state().view(StateField::values).slice(3, 0, 3));
  net.plan().run(context);

  const auto logits = net.plan().output().span<float>();
  std::vector<double> ours;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ours.push_back(logits[i * 25]);
  }
  std::vector<double> theirs(expected.begin(), expected.end());
  const Shape shape{static_cast<std::int64_t>(ours.size())};
  return testing::relative_error(TensorView(std::span(ours), shape), TensorView(std::span(theirs), shape));
}

void expect_torchvisions(const Model& model, std::int64_t parameters, std::span<const double> logits) {
  EXPECT_EQ(model.parameter_count(), parameters);
  const double error = logits_error(model, logits);
  EXPECT_TRUE(error <= 1e-4) << error;
}

TEST(ResNetLogits, ResNet18IsTorchvisions) {
  expect_torchvisions(resnet(18), kParameters18, kLogits18);
}

TEST(ResNetLogits, ResNet50IsTorchvisions) {
  expect_torchvisions(resnet(50), kParameters50, kLogits50);
}

TEST(ResNetLogits, ResNeXt50IsTorchvisions) {
  expect_torchvisions(resnet(50, 1000, 224, {32, 4}), kParametersNeXt50, kLogitsNeXt50);
}

TEST(ResNetLogits, WideResNet50IsTorchvisions) {
  expect_torchvisions(resnet(50, 1000, 224, {1, 128}), kParametersWide50, kLogitsWide50);
}

TEST(ResNetLogits, PermutedWeightsAreSeen) {
  EXPECT_FALSE(logits_error(resnet(18), kLogits18, true) <= 1e-4);
}

}  // namespace
}  // namespace lockstep::nn
