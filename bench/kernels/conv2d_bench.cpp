#include <lockstep/kernels/detail/providers.hpp>
#include <lockstep/runtime/machine/device.hpp>

#include "tests/kernels/conv2d_cases.hpp"
#include "tests/kernels/conv2d_networks.hpp"

namespace lockstep::bench {

/// Each pass of the convolutions of ResNet-20 (batch 128) and ResNet-50 (batch 8) with every choice that the host has,
/// in f32 and bf16, weight reorders included; where there is a GPU, also with the best guess of each of its providers.
std::vector<testing::OpCase> conv2d_bench() {
  CpuContext context;
  std::vector<testing::OpCase> items;
  const auto add = [&](const char* net, const std::vector<testing::ConvCase>& cases) {
    for (const auto& [name, desc] : cases) {
      for (const ops::ConvPass pass : testing::kConvPasses) {
        for (const DType dtype : {DType::f32, DType::bf16}) {
          ops::ConvDesc typed = desc;
          typed.dtype = dtype;
          for (const std::string& choice : ops::conv2d_choices(context, typed, pass)) {
            items.push_back(testing::conv2d_case(concat(net, ' ', name), typed, pass, choice));
          }
          for (const ops::ConvProvider& provider : ops::conv_providers()) {
            if (provider.device == DeviceKind::cuda && num_gpus() > 0) {
              items.push_back(testing::conv2d_case(concat(net, ' ', name), typed, pass, std::string(provider.name)));
            }
          }
        }
      }
    }
  };
  add("resnet20", testing::resnet20_cases(128));
  add("resnet50", testing::resnet50_cases(8));
  return items;
}

}  // namespace lockstep::bench
