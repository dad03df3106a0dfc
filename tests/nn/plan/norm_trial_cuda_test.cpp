// On a GPU: tests cuDNN's engines, and lockstep's own kernels, that also compute the sums of a batch norm in a
// convolution. Compares them with the plain convolution and the batch norm's own kernels.
#include <lockstep/nn/plan/norm_trial.hpp>

#include <lockstep/kernels/library_versions.hpp>
#include <lockstep/runtime/base/error.hpp>

#include "tests/kernels/conv2d_networks.hpp"
#include "tests/support/cuda_test.hpp"

namespace lockstep::nn {
namespace {

using CudaNormTrial = testing::CudaTest;

TEST_F(CudaNormTrial, EveryEngineGivesWhatItsPartsGive) {
  int compared = 0;
  int wanted = 0;
  for (const testing::ConvCase& item : testing::resnet50_cases(8)) {
    for (const DType dtype : {DType::bf16, DType::f16}) {
      for (const ops::ConvNorm norm :
           {ops::ConvNorm{true}, ops::ConvNorm{true, true}, ops::ConvNorm{true, true, true}}) {
        for (const ops::ConvPass pass : {ops::ConvPass::forward, ops::ConvPass::backward_data}) {
          ops::ConvDesc desc = item.desc;
          desc.dtype = dtype;
          desc.norm = norm;
          const bool forward = pass == ops::ConvPass::forward;
          if (!ops::conv_may_serve_norm(desc, pass) || (forward && norm.addend)) {
            continue;
          }
          ++wanted;
          const Tensor a = Tensor::rand(cuda(), forward ? desc.x_shape() : desc.y_shape(), dtype, 1);
          const Tensor b = Tensor::rand(cuda(), desc.weights_shape(), dtype, 2);
          const Tensor out = Tensor::zeros(cuda(), forward ? desc.y_shape() : desc.x_shape(), dtype);
          NormTrial trial(cuda(), desc, pass);
          for (const std::string& choice : ops::conv2d_choices(cuda(), desc, pass)) {
            const bool serves = choice.find(":norm") != std::string::npos;
            if (!serves && trial.checks()) {
              continue;
            }
            std::string refusal;
            try {
              const auto plan = ops::plan_conv2d(cuda(), desc, pass, choice);
              const Tensor workspace =
                  Tensor::zeros(cuda(), Shape{static_cast<std::int64_t>(plan->workspace_bytes()) + 64}, DType::u8);
              trial.check(*plan, {a.view(), b.view(), out.view(), workspace.view()});
              compared += choice.starts_with("cudnn:norm") ? 1 : 0;
            } catch (const UnsupportedError& error) {  // an engine may refuse, but may not give another result
              refusal = error.what();
            }
            EXPECT_EQ(refusal.find("it gives"), std::string::npos)
                << item.name << ' ' << dtype << " pass " << static_cast<int>(pass) << ' ' << choice << ": " << refusal;
          }
        }
      }
    }
  }
  RecordProperty("engines compared", compared);
  EXPECT_GT(wanted, 0);
  if (ops::library_versions(DeviceKind::cuda).find("cudnn none") == std::string::npos) {
    EXPECT_GE(compared, wanted / 2) << "engines are there, and few of them run";
  }
}

}  // namespace
}  // namespace lockstep::nn
