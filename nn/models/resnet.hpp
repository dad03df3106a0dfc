#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <lockstep/nn/model/model.hpp>

namespace lockstep::nn {

/// Width of the 3x3 convolutions in a ResNet's bottlenecks. In the first stage, they have `groups` groups of
/// `group_width` channels each. Each next stage doubles the channels. The width does not change the shape of a block's
/// output.
struct BottleneckWidth {
  std::int64_t groups = 1;
  std::int64_t group_width = 64;
};

/// Returns ResNet-18, 34, 50, 101 or 152 for large images (He et al. 2015; in v1.5 the 3x3 convolution of a bottleneck
/// has the stride). With several groups, the model is a ResNeXt (Xie et al. 2017: 32 groups of 4 channels). With one
/// wider group, the model is a wide ResNet (Zagoruyko and Komodakis 2016: 128 channels). Depth 18 and 34 have no
/// bottlenecks, so any `width` other than the default causes UsageError.
///
/// Parameter names, logical shapes and the model's name are torchvision's: resnet50, resnext50_32x4d, wide_resnet50_2.
/// `image` is the side in pixels of the square RGB input. With zero_init_residual, the scale of each block's last norm
/// begins as 0, so each block begins as its shortcut (Goyal et al. 2017, section 5.1).
[[nodiscard]] Model resnet(int depth, std::int64_t classes = 1000, std::int64_t image = 224,
                           const BottleneckWidth& width = {}, bool zero_init_residual = false);

/// Returns ResNet-20, 32, 44, 56 or 110 for small images (He et al. 2015, section 4.2). The shortcuts (option A) have
/// no parameters. Names are like torchvision's, with 3 stages after a 3x3 stem: conv1, bn1,
/// layer{1,2,3}.{i}.{conv1,bn1,conv2,bn2}, fc.
[[nodiscard]] Model cifar_resnet(int depth, std::int64_t classes = 10, std::int64_t height = 32,
                                 std::int64_t width = 32, bool zero_init_residual = false);

/// Returns a perceptron on the flattened input: layers.{i} with ReLU between them. Without hidden layers the model is a
/// linear classifier. Throws UsageError for sizes outside of 1 to 2^24 and for more than 10,000 hidden layers.
[[nodiscard]] Model mlp(const Shape& input, const std::vector<std::int64_t>& hidden, std::int64_t classes);

/// Describes the model that make_model() makes. Names are "resnet18", "resnext50_32x4d", "resnet20", ..., "airbench94"
/// (models/airbench.hpp) and "mlp" (with hidden sizes). For another name, make_model() throws a UsageError that lists
/// all names.
struct ModelRequest {
  std::string name = "resnet20";
  std::int64_t classes = 10;
  std::int64_t height = 32;
  std::int64_t width = 32;
  std::vector<std::int64_t> hidden{};  ///< sizes of the hidden layers, only for mlp
  bool zero_init_residual = false;     ///< see resnet(); mlp and airbench94 do not have this option
};
[[nodiscard]] Model make_model(const ModelRequest& request);

}  // namespace lockstep::nn
