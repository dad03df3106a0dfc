#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/models/airbench.hpp>

#include <string>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep::nn {

namespace {

constexpr std::int64_t kLeastSide = 25;  // smallest image side; the layers reduce it to 24, 12, 6, 3 and 1

NodeId norm_and_gelu(ModelBuilder& builder, const std::string& name, NodeId x, double momentum,
                     const std::string& activation) {
  const NodeId normed = builder.batch_norm(name, x, {.epsilon = 1e-12, .momentum = momentum});
  builder.freeze(name + ".weight");
  return builder.activation(activation, normed, ops::Activation::gelu);
}

}  // namespace

Model airbench94(const AirbenchOptions& options) {
  require<UsageError>(options.height >= kLeastSide && options.width >= kLeastSide, "airbench94: images are ",
                      options.height, " x ", options.width, ", expected at least ", kLeastSide, " pixels a side");
  require<UsageError>(options.classes >= 1, "airbench94: classes is ", options.classes, ", expected at least 1");
  ModelBuilder builder = ModelBuilder::for_images("airbench94", {options.height, options.width, 3});
  NodeId x =
      builder.conv2d("whiten", builder.input(), kWhiteningFilters, {.kernel = kWhitenedSide, .pad = 0, .bias = true});
  builder.freeze("whiten.weight");
  x = builder.activation("whiten.gelu", x, ops::Activation::gelu);
  int number = 0;
  for (const std::int64_t channels : options.widths) {
    const std::string name = "group" + std::to_string(++number);
    require<UsageError>(channels >= 1, "airbench94: the width of ", name, " is ", channels, ", expected at least 1");
    const ConvOptions conv{.kernel = 3, .pad = 1, .init = ConvInit::identity};
    x = builder.conv2d(name + ".conv1", x, channels, conv);
    x = builder.max_pool(name + ".pool", x, 2, 2, 0);
    x = norm_and_gelu(builder, name + ".norm1", x, options.norm_momentum, name + ".gelu1");
    x = builder.conv2d(name + ".conv2", x, channels, conv);
    x = norm_and_gelu(builder, name + ".norm2", x, options.norm_momentum, name + ".gelu2");
  }
  x = builder.max_pool("pool", x, 3, 3, 0);
  x = builder.linear("head", x, options.classes, {.bias = false});
  builder.scale("scale", x, options.logit_scale);
  return builder.build();
}

}  // namespace lockstep::nn
