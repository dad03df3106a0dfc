#include <lockstep/nn/layers/model_builder.hpp>
#include <lockstep/nn/models/resnet.hpp>

#include <algorithm>
#include <array>
#include <functional>

#include <lockstep/nn/models/airbench.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::nn {

namespace {

/// Appends a block's shortcut and returns its output. A block calls this function after its convolutions. Backward runs
/// in the reverse order: it computes the gradient of the shortcut first, and the block's first convolution adds its own
/// gradient to this gradient.
using Shortcut = std::function<NodeId()>;

/// Appends a residual block of two 3x3 convolutions.
NodeId basic_block(ModelBuilder& builder, const std::string& name, NodeId x, const Shortcut& shortcut,
                   std::int64_t channels, std::int64_t stride, bool zero_init) {
  NodeId y = builder.conv2d(name + ".conv1", x, channels, {.kernel = 3, .stride = stride, .pad = 1});
  y = builder.batch_norm(name + ".bn1", y, {.relu = true});
  y = builder.conv2d(name + ".conv2", y, channels, {.kernel = 3, .stride = 1, .pad = 1});
  return builder.batch_norm(name + ".bn2", y,
                            {.relu = true, .residual = shortcut(), .initial_weight = zero_init ? 0.0 : 1.0});
}

/// Appends a residual block of three convolutions: 1x1, 3x3 with `stride` and groups, and 1x1 to 4 * `channels`.
NodeId bottleneck_block(ModelBuilder& builder, const std::string& name, NodeId x, const Shortcut& shortcut,
                        std::int64_t channels, std::int64_t stride, const BottleneckWidth& width, bool zero_init) {
  const std::int64_t inner = channels / 64 * width.group_width * width.groups;
  NodeId y = builder.conv2d(name + ".conv1", x, inner, {.kernel = 1});
  y = builder.batch_norm(name + ".bn1", y, {.relu = true});
  y = builder.conv2d(name + ".conv2", y, inner, {.kernel = 3, .stride = stride, .pad = 1, .groups = width.groups});
  y = builder.batch_norm(name + ".bn2", y, {.relu = true});
  y = builder.conv2d(name + ".conv3", y, 4 * channels, {.kernel = 1});
  return builder.batch_norm(name + ".bn3", y,
                            {.relu = true, .residual = shortcut(), .initial_weight = zero_init ? 0.0 : 1.0});
}

/// Returns torchvision's name of a ResNet, such as resnext50_32x4d or wide_resnet50_2. For widths that torchvision does
/// not have, returns a name of similar form.
std::string name_of(int depth, const BottleneckWidth& width) {
  if (width.groups > 1) {
    return concat("resnext", depth, '_', width.groups, 'x', width.group_width, 'd');
  }
  if (width.group_width == 64) {
    return concat("resnet", depth);
  }
  return width.group_width % 64 == 0 ? concat("wide_resnet", depth, '_', width.group_width / 64)
                                     : concat("resnet", depth, "_width", width.group_width);
}

/// A ResNet for large images that make_model() knows by name.
struct LargeModel {
  int depth;
  BottleneckWidth width;
};
constexpr std::array<LargeModel, 9> kLargeModels{{{18, {}},
                                                  {34, {}},
                                                  {50, {}},
                                                  {101, {}},
                                                  {152, {}},
                                                  {50, {32, 4}},
                                                  {101, {32, 8}},
                                                  {50, {1, 128}},
                                                  {101, {1, 128}}}};

}  // namespace

Model resnet(int depth, std::int64_t classes, std::int64_t image, const BottleneckWidth& width,
             bool zero_init_residual) {
  struct Kind {
    int depth;
    bool bottleneck;
    std::array<int, 4> blocks;
  };
  constexpr std::array<Kind, 5> kKinds{{{18, false, {2, 2, 2, 2}},
                                        {34, false, {3, 4, 6, 3}},
                                        {50, true, {3, 4, 6, 3}},
                                        {101, true, {3, 4, 23, 3}},
                                        {152, true, {3, 8, 36, 3}}}};
  const auto* const kind = std::find_if(kKinds.begin(), kKinds.end(), [=](const Kind& k) { return k.depth == depth; });
  require<UsageError>(kind != kKinds.end(), "resnet: depth is ", depth, ", expected 18, 34, 50, 101 or 152");
  constexpr std::int64_t kMost = 1 << 20;
  require<UsageError>(
      width.groups >= 1 && width.groups <= kMost && width.group_width >= 1 && width.group_width <= kMost,
      "resnet: ", width.groups, " groups of width ", width.group_width, ", expected 1 to ", kMost, " of each");
  require<UsageError>(kind->bottleneck || (width.groups == 1 && width.group_width == 64), "resnet: ", width.groups,
                      " groups of width ", width.group_width, ", expected 1 group of width 64 for depth ", depth,
                      ", which has no bottlenecks");

  ModelBuilder builder = ModelBuilder::for_images(name_of(depth, width), {image, image, 3});
  NodeId x = builder.conv2d("conv1", builder.input(), 64, {.kernel = 7, .stride = 2, .pad = 3});
  x = builder.batch_norm("bn1", x, {.relu = true});
  x = builder.max_pool("maxpool", x, 3, 2, 1);
  for (int stage = 0; stage < 4; ++stage) {
    const std::int64_t channels = std::int64_t{64} << stage;
    const std::int64_t out = kind->bottleneck ? 4 * channels : channels;
    for (int i = 0; i < kind->blocks[static_cast<std::size_t>(stage)]; ++i) {
      const std::string name = "layer" + std::to_string(stage + 1) + "." + std::to_string(i);
      const std::int64_t stride = stage > 0 && i == 0 ? 2 : 1;
      const Shortcut shortcut = [&, x] {
        if (stride == 1 && builder.shape(x).back() == out) {
          return x;
        }
        const NodeId y = builder.conv2d(name + ".downsample.0", x, out, {.kernel = 1, .stride = stride});
        return builder.batch_norm(name + ".downsample.1", y);
      };
      x = kind->bottleneck ? bottleneck_block(builder, name, x, shortcut, channels, stride, width, zero_init_residual)
                           : basic_block(builder, name, x, shortcut, channels, stride, zero_init_residual);
    }
  }
  x = builder.global_average_pool("avgpool", x);
  builder.linear("fc", x, classes);
  return builder.build();
}

Model cifar_resnet(int depth, std::int64_t classes, std::int64_t height, std::int64_t width, bool zero_init_residual) {
  require<UsageError>(depth >= 8 && (depth - 2) % 6 == 0, "resnet: depth is ", depth,
                      ", expected 6 n + 2 for small images: 20, 32, 44, 56, 110");
  const int blocks = (depth - 2) / 6;
  ModelBuilder builder = ModelBuilder::for_images("resnet" + std::to_string(depth), {height, width, 3});
  NodeId x = builder.conv2d("conv1", builder.input(), 16, {.kernel = 3, .pad = 1});
  x = builder.batch_norm("bn1", x, {.relu = true});
  for (int stage = 0; stage < 3; ++stage) {
    const std::int64_t channels = std::int64_t{16} << stage;
    for (int i = 0; i < blocks; ++i) {
      const std::string name = "layer" + std::to_string(stage + 1) + "." + std::to_string(i);
      const std::int64_t stride = stage > 0 && i == 0 ? 2 : 1;
      const Shortcut shortcut = [&, x] {
        return stride == 1 ? x : builder.subsample_pad(name + ".shortcut", x, channels, stride);
      };
      x = basic_block(builder, name, x, shortcut, channels, stride, zero_init_residual);
    }
  }
  x = builder.global_average_pool("avgpool", x);
  builder.linear("fc", x, classes);
  return builder.build();
}

Model mlp(const Shape& input, const std::vector<std::int64_t>& hidden, std::int64_t classes) {
  constexpr std::size_t kMostLayers = 10'000;
  constexpr std::int64_t kMostFeatures = std::int64_t{1} << 24;
  require<UsageError>(hidden.size() <= kMostLayers, "mlp: ", hidden.size(), " hidden layers, expected at most ",
                      kMostLayers);
  const bool image = input.rank() == 3 && input.back() == 3;
  ModelBuilder builder = image ? ModelBuilder::for_images("mlp", input) : ModelBuilder("mlp", input);
  NodeId x = builder.input();
  int i = 0;
  for (const std::int64_t features : hidden) {
    require<UsageError>(features >= 1 && features <= kMostFeatures, "mlp: hidden size is ", features,
                        ", expected 1 to ", kMostFeatures);
    x = builder.linear("layers." + std::to_string(i++), x, features,
                       {.he_init = true, .activation = ops::Activation::relu});
  }
  builder.linear("layers." + std::to_string(i), x, classes);
  return builder.build();
}

Model make_model(const ModelRequest& request) {
  if (request.name == "mlp") {
    require<UsageError>(!request.zero_init_residual,
                        "zero_init_residual is on for mlp, which has no residual blocks; expected it off");
    return mlp({request.height, request.width, 3}, request.hidden, request.classes);
  }
  require<UsageError>(request.hidden.empty(), "model ", request.name,
                      " is given hidden sizes, expected none: only mlp has them");
  if (request.name == "airbench94") {
    require<UsageError>(!request.zero_init_residual,
                        "zero_init_residual is on for airbench94, which has no residual blocks; expected it off");
    return airbench94({.classes = request.classes, .height = request.height, .width = request.width});
  }
  for (const int depth : {20, 32, 44, 56, 110}) {
    if (request.name == "resnet" + std::to_string(depth)) {
      return cifar_resnet(depth, request.classes, request.height, request.width, request.zero_init_residual);
    }
  }
  for (const LargeModel& large : kLargeModels) {
    if (request.name == name_of(large.depth, large.width)) {
      require<UsageError>(request.height == request.width, "model ", request.name, ": images are ", request.height,
                          " x ", request.width, ", expected square ones");
      return resnet(large.depth, request.classes, request.height, large.width, request.zero_init_residual);
    }
  }
  constexpr std::string_view kTorchvision = "torchvision/";
  if (request.name.starts_with(kTorchvision)) {
    const std::string name = request.name.substr(kTorchvision.size());
    throw UsageError(concat("unknown model '", request.name, "', expected a name alone: --model ", name,
                            " --init FILE, nothing is downloaded"));
  }
  throw UsageError("unknown model '" + request.name +
                   "', expected resnet18, 34, 50, 101, 152, resnext50_32x4d, resnext101_32x8d, wide_resnet50_2, "
                   "wide_resnet101_2 (large images), resnet20, 32, 44, 56, 110, airbench94 (small images) or mlp");
}

}  // namespace lockstep::nn
