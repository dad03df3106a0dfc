#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <lockstep/nn/model/model.hpp>

namespace lockstep::nn {

/// ResNet-18, 34, 50, 101, 152 for large images (He et al. 2015; v1.5: the stride of a bottleneck sits on its 3x3
/// convolution). Parameter names and logical shapes are torchvision's. `image` is the side of the square RGB input.
[[nodiscard]] Model resnet(int depth, std::int64_t classes = 1000, std::int64_t image = 224);

/// ResNet-20, 32, 44, 56, 110 for small images (He et al. 2015, section 4.2; shortcuts of option A: no parameters).
/// Names follow torchvision's with a 3x3 stem and three stages: conv1, bn1, layer{1,2,3}.{i}.{conv1,bn1,conv2,bn2}, fc.
[[nodiscard]] Model cifar_resnet(int depth, std::int64_t classes = 10, std::int64_t height = 32,
                                 std::int64_t width = 32);

/// Multi-layer perceptron on the flattened image: layers.{i} with ReLU between them. Without hidden layers it is a
/// linear classifier. UsageError for a size outside of 1 to 2^24, and for more than 10,000 hidden layers.
[[nodiscard]] Model mlp(const Shape& input, const std::vector<std::int64_t>& hidden, std::int64_t classes);

/// A model by name: "resnet18", "resnet20", ..., "mlp" (with hidden sizes). UsageError listing the names otherwise.
struct ModelRequest {
  std::string name = "resnet20";
  std::int64_t classes = 10;
  std::int64_t height = 32;
  std::int64_t width = 32;
  std::vector<std::int64_t> hidden{};  ///< mlp only
};
[[nodiscard]] Model make_model(const ModelRequest& request);

}  // namespace lockstep::nn
