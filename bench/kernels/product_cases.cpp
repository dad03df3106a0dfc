#include <lockstep/kernels/detail/providers.hpp>
#include <lockstep/kernels/linear_epilogue.hpp>
#include <lockstep/runtime/machine/device.hpp>

#include "tests/kernels/conv2d_cases.hpp"
#include "tests/kernels/conv2d_networks.hpp"
#include "tests/kernels/linear_epilogue_cases.hpp"
#include "tests/kernels/low_rank_cases.hpp"
#include "tests/kernels/matmul_cases.hpp"
#include "tests/kernels/mlp_cases.hpp"
#include "tests/kernels/muon_cases.hpp"

namespace lockstep::bench {

/// Returns cases for each pass of the convolutions of ResNet-20 (batch 128) and ResNet-50 (batch 8), in f32 and bf16.
/// On the host there is a case for every choice. With a GPU there is a case for each provider (a library or lockstep's
/// own kernels), with the choice that the provider guesses to be best.
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

namespace {

/// Makes a case that computes `desc` in two passes: the product, then bias and activation.
testing::OpCase in_two_passes(const ops::MatmulDesc& desc, const std::string& choice) {
  testing::OpCase item = testing::matmul_case(desc, choice);
  item.name += " in two passes";
  item.prepare = [=](Context& context) {
    ops::MatmulDesc product = desc;
    product.bias = false;
    product.activation = ops::Activation::identity;
    const std::shared_ptr<ops::MatmulPlan> plan = ops::plan_matmul(context, product, choice);
    return testing::PreparedOp{
        plan->workspace_bytes(), [=](Context& on, testing::Views in, testing::Views out, const TensorView& workspace) {
          ops::matmul(on, *plan, in[0], in[1], {}, out[0], workspace);
          ops::linear_epilogue_forward(on, desc.activation, out[0], desc.bias ? in[2] : TensorView(), {}, out[0]);
        }};
  };
  return item;
}

}  // namespace

/// Returns cases for the three matrix products (forward, backward_data, backward_weights) of the last layers of
/// ResNet-20 and ResNet-50, and for one large square product. Also returns cases for hidden layers of a perceptron and
/// of a transformer, with the activation in the same pass as the product and in a second pass. All cases are in f32 and
/// bf16, with every choice of the host and, with a GPU, the best guess of each provider (a library or lockstep's own
/// kernels).
std::vector<testing::OpCase> matmul_bench() {
  CpuContext context;
  std::vector<testing::OpCase> items;
  const auto for_each_choice = [&](const ops::MatmulDesc& d, const auto& take) {
    for (const std::string& choice : ops::matmul_choices(context, d)) {
      take(choice);
    }
    for (const ops::MatmulProvider& provider : ops::matmul_providers()) {
      if (provider.device == DeviceKind::cuda && num_gpus() > 0) {
        take(std::string(provider.name));
      }
    }
  };
  const auto add = [&](std::int64_t m, std::int64_t n, std::int64_t k, bool transpose_a, bool transpose_b) {
    ops::MatmulDesc d;
    d.m = m;
    d.n = n;
    d.k = k;
    d.transpose_a = transpose_a;
    d.transpose_b = transpose_b;
    for (const DType dtype : {DType::f32, DType::bf16}) {
      d.dtype = dtype;
      d.accumulator_output = transpose_a;  // a transposed `a` occurs in backward_weights, whose output is a gradient
      for_each_choice(d, [&](const std::string& choice) { items.push_back(testing::matmul_case(d, choice)); });
    }
  };
  const auto add_activated = [&](std::int64_t m, std::int64_t n, std::int64_t k, ops::Activation activation) {
    ops::MatmulDesc d{.m = m, .n = n, .k = k, .transpose_b = true, .bias = true, .activation = activation};
    for (const DType dtype : {DType::f32, DType::bf16}) {
      d.dtype = dtype;
      for_each_choice(d, [&](const std::string& choice) {
        items.push_back(testing::matmul_case(d, choice));
        items.push_back(in_two_passes(d, choice));
      });
    }
  };
  const auto add_linear = [&](std::int64_t batch, std::int64_t in, std::int64_t out) {
    add(batch, out, in, false, true);   // product of a forward
    add(batch, in, out, false, false);  // product of a backward_data
    add(out, in, batch, true, false);   // product of a backward_weights
  };
  add_linear(128, 64, 10);
  add_linear(32, 2048, 1000);
  add(1024, 1024, 1024, false, false);
  add_activated(128, 512, 256, ops::Activation::relu);
  add_activated(1024, 3072, 768, ops::Activation::gelu_tanh);
  return items;
}

/// Returns cases for the epilogues after the products of a transformer block of width 768 (GPT-2 small) on 8 sequences
/// of 1024: the hidden layer, and the projection that is added to the block's input.
std::vector<testing::OpCase> linear_epilogue_bench() {
  using ops::Activation;
  using testing::LinearEpilogueParams;
  std::vector<testing::OpCase> items;
  for (const LinearEpilogueParams& p :
       {LinearEpilogueParams{.kind = Activation::gelu, .shape = {8192, 3072}, .residual = false},
        LinearEpilogueParams{.kind = Activation::identity, .shape = {8192, 768}}}) {
    items.push_back(testing::linear_epilogue_forward_case(p));
    items.push_back(testing::linear_epilogue_backward_case(p));
  }
  return items;
}

/// Returns cases for the largest convolution of ResNet-50 (512 x 4608) and the embedding of GPT-2 small, both
/// compressed to rank 2.
std::vector<testing::OpCase> low_rank_bench() {
  std::vector<testing::OpCase> items;
  for (const Shape& shape : {Shape{512, 4608}, Shape{50257, 768}}) {
    items.push_back(testing::orthonormalise_case(Shape{shape[0], 2}, DType::f32));
    items.push_back(testing::low_rank_residual_case(shape[0], shape[1], 2, DType::f32));
    items.push_back(testing::keep_columns_case(shape[1], 2, DType::f32, ops::Column::kept));
  }
  return items;
}

/// Returns cases for the MLP of bench_embedding, and for wider layers, with few and with many samples.
std::vector<testing::OpCase> mlp_bench() {
  std::vector<testing::OpCase> items;
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const std::int64_t samples : {1, 8, 32, 1024}) {
      items.push_back(testing::mlp_case({.widths = {4, 32, 32, 1}, .samples = samples, .dtype = dtype}));
      items.push_back(testing::mlp_case({.widths = {64, 128, 64}, .samples = samples, .dtype = dtype}));
    }
  }
  return items;
}

/// Returns cases for the arena of ResNet-50 and for square matrices: 12 matrices of GPT-2 small's width, and 4 of
/// ResNet-50's largest width.
std::vector<testing::OpCase> muon_bench() {
  return {testing::muon_direction_case({25557032, DType::f32, testing::many_segments(25557032, 161), 0}, {}),
          testing::muon_polynomial_case(12, 768, DType::f32), testing::muon_polynomial_case(4, 2048, DType::f32)};
}

}  // namespace lockstep::bench
