#include "tests/kernels/activation_cases.hpp"
#include "tests/kernels/add_cases.hpp"
#include "tests/kernels/average_pool2d_cases.hpp"
#include "tests/kernels/batch_norm_cases.hpp"
#include "tests/kernels/batch_norm_fused_cases.hpp"
#include "tests/kernels/batch_norm_given_cases.hpp"
#include "tests/kernels/batch_norm_pool_cases.hpp"
#include "tests/kernels/dropout_cases.hpp"
#include "tests/kernels/embedding_cases.hpp"
#include "tests/kernels/grouped_copy_cases.hpp"
#include "tests/kernels/layer_norm_cases.hpp"
#include "tests/kernels/max_pool2d_cases.hpp"
#include "tests/kernels/regression_loss_cases.hpp"
#include "tests/kernels/relu_cases.hpp"
#include "tests/kernels/scale_cases.hpp"
#include "tests/kernels/softmax_cases.hpp"
#include "tests/kernels/softmax_cross_entropy_cases.hpp"
#include "tests/kernels/strided_copy_cases.hpp"
#include "tests/kernels/subsample_pad_cases.hpp"
#include "tests/kernels/top_k_cases.hpp"

namespace lockstep::bench {

/// Returns cases for the hidden layer of a transformer block of width 768 (GPT-2 small), 8 sequences of 1024.
std::vector<testing::OpCase> activation_bench() {
  std::vector<testing::OpCase> items;
  for (const ops::Activation kind : testing::kActivations) {
    items.push_back(testing::activation_forward_case(kind, {8192, 3072}, DType::f32));
    items.push_back(testing::activation_backward_case(kind, {8192, 3072}, DType::f32));
  }
  return items;
}

/// Returns cases for the gradient of a skip connection, in ResNet-20 (batch 128) and in ResNet-50 (batch 32).
std::vector<testing::OpCase> add_bench() {
  return {testing::add_case({128, 32, 32, 16}, DType::f32), testing::add_case({32, 56, 56, 256}, DType::f32)};
}

/// Returns cases for average pools:
/// - 2 x 2 at stride 2, as in the shortcuts of ResNet-D and the transitions of DenseNet (batch 32);
/// - 3 x 3 with padding, as in Inception;
/// - global, as in the last layers of ResNet-20 (batch 128) and ResNet-50 (batch 32).
std::vector<testing::OpCase> average_pool2d_bench() {
  std::vector<testing::OpCase> items;
  for (const testing::PoolParams& p : {testing::PoolParams{{32, 56, 56, 256}, {{2, 2}, {2, 2}}},
                                       testing::PoolParams{{32, 35, 35, 288}, {{3, 3}, {1, 1}, {1, 1}, {1, 1}}}}) {
    items.push_back(testing::average_pool2d_forward_case(p, ops::AverageOver::window));
    items.push_back(testing::average_pool2d_backward_case(p, ops::AverageOver::window));
  }
  for (const Shape& shape : {Shape{128, 8, 8, 64}, Shape{32, 7, 7, 2048}}) {
    items.push_back(testing::global_average_pool_forward_case(shape, DType::f32));
    items.push_back(testing::global_average_pool_backward_case(shape, DType::f32));
  }
  return items;
}

/// Returns cases for the batch norms of ResNet-20 (batch 128) and of the first and last stage of ResNet-50 (batch 32),
/// in f32 and bf16. The cases are the statistics, the forward pass (plain, with ReLU, with ReLU and residual), and the
/// two calls of the backward pass. Also returns cases that merge the statistics of 8 ranks.
std::vector<testing::OpCase> batch_norm_bench() {
  using testing::BatchNormParams;
  std::vector<testing::OpCase> items;
  for (const Shape& shape : {Shape{128, 32, 32, 16}, Shape{128, 16, 16, 32}, Shape{128, 8, 8, 64},
                             Shape{32, 56, 56, 256}, Shape{32, 7, 7, 2048}}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const BatchNormParams plain{.shape = shape, .dtype = dtype};
      const BatchNormParams relu{.shape = shape, .dtype = dtype, .relu = true};
      const BatchNormParams block{.shape = shape, .dtype = dtype, .residual = true, .relu = true, .second = true};
      items.push_back(testing::batch_norm_stats_case(plain));
      for (const BatchNormParams& p : {plain, relu, block}) {
        items.push_back(testing::batch_norm_apply_case(p));
        items.push_back(testing::batch_norm_backward_reduce_case(p, ops::GradMode::overwrite));
        items.push_back(testing::batch_norm_backward_apply_case(p));
      }
    }
  }
  for (const std::int64_t channels : {16, 64, 2048}) {
    items.push_back(testing::batch_norm_merge_stats_case(channels, DType::f32, std::vector<std::int64_t>(8, 1000)));
  }
  return items;
}

/// Returns cases for the forward and backward pass of batch norms in ResNet-20 (batch 128), in f32 and bf16: the first
/// stage, and the last stage with a residual.
std::vector<testing::OpCase> batch_norm_fused_bench() {
  std::vector<testing::OpCase> items;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const testing::BatchNormParams& p :
         {testing::BatchNormParams{{128, 32, 32, 16}, dtype, 128, false, true},
          testing::BatchNormParams{{128, 8, 8, 64}, dtype, 128, true, true, true}}) {
      for (testing::OpCase& item : testing::batch_norm_fused_calls(p, 0)) {
        items.push_back(std::move(item));
      }
    }
  }
  return items;
}

/// Returns cases of batch norms whose sums over x are inputs, because the convolution before has computed them. These
/// calls do not read x. The cases have the smallest and the largest number of channels of ResNet-50.
std::vector<testing::OpCase> batch_norm_given_bench() {
  std::vector<testing::OpCase> items;
  for (const std::int64_t channels : {64, 2048}) {
    items.push_back(testing::batch_norm_coefficients_given_case({{64, 14, 14, channels}, DType::f32, 64, true, true}));
    items.push_back(testing::batch_norm_gradients_given_case(channels, DType::f32, ops::GradMode::overwrite));
  }
  return items;
}

/// Returns cases for the stem of ResNet-50 (batch 32) in f32 and bf16: forward, and the two calls of the backward pass.
std::vector<testing::OpCase> batch_norm_pool_bench() {
  std::vector<testing::OpCase> items;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const testing::StemParams p{{{32, 112, 112, 64}, {{3, 3}, {2, 2}, {1, 1}, {1, 1}}, dtype}};
    for (testing::OpCase& item : testing::batch_norm_pool_calls(p, 0)) {
      items.push_back(std::move(item));
    }
  }
  return items;
}

/// Returns cases for transformer blocks of width 768 and their attention (GPT-2 small) on 8 sequences of 1024, and for
/// a classifier's last hidden layer.
std::vector<testing::OpCase> dropout_bench() {
  std::vector<testing::OpCase> items;
  for (const Shape& shape : {Shape{8, 1024, 768}, Shape{1, 12, 1024, 1024}, Shape{256, 4096}}) {
    items.push_back(testing::dropout_case(shape, DType::f32, testing::dropout_desc(0.1)));
  }
  return items;
}

/// Returns cases for the embedding of GPT-2 small on 8 sequences of 1024, with all ids equally frequent.
std::vector<testing::OpCase> embedding_bench() {
  const testing::EmbeddingParams p{50257, 768, Shape{8, 1024}, true, 8};
  return {testing::embedding_forward_case(p, DType::f32),
          testing::embedding_backward_case(p, DType::f32, ops::GradMode::accumulate)};
}

/// Returns cases for three groups of tensors: the parameters of ResNet-50's batch norms (106 tensors of 64 to 2048
/// numbers), 80 tensors of 4 KiB, and 4 tensors of 32 MiB.
std::vector<testing::OpCase> grouped_copy_bench() {
  std::vector<testing::GroupedPair> norms;
  const auto stage = [&](int blocks, std::int64_t width) {
    for (int block = 0; block < blocks; ++block) {
      for (const std::int64_t channels : {width, width, 4 * width}) {
        norms.insert(norms.end(), 2, {Shape{channels}, DType::f32});
      }
    }
    norms.insert(norms.end(), 2, {Shape{4 * width}, DType::f32});  // batch norm of the skip connection
  };
  norms.insert(norms.end(), 2, {Shape{64}, DType::f32});
  stage(3, 64);
  stage(4, 128);
  stage(6, 256);
  stage(3, 512);
  return {testing::grouped_copy_case("batch norms", norms),
          testing::grouped_copy_case("4 KiB", {80, {Shape{1024}, DType::f32}}),
          testing::grouped_copy_case("32 MiB", {4, {Shape{8 << 20}, DType::f32}})};
}

/// Returns cases for transformer blocks of width 768 (GPT-2 small) on 8 sequences of 1024, and of width 4096 on 2048
/// tokens.
std::vector<testing::OpCase> layer_norm_bench() {
  std::vector<testing::OpCase> items;
  for (const Shape& shape : {Shape{8192, 768}, Shape{2048, 4096}}) {
    items.push_back(testing::layer_norm_forward_case(shape, DType::f32));
    items.push_back(testing::layer_norm_backward_case(shape, DType::f32, ops::GradMode::overwrite));
  }
  return items;
}

/// Returns cases for the stem of ResNet-50 (batch 32).
std::vector<testing::OpCase> max_pool2d_bench() {
  const testing::PoolParams stem{{32, 112, 112, 64}, {{3, 3}, {2, 2}, {1, 1}, {1, 1}}};
  return {testing::max_pool2d_forward_case(stem), testing::max_pool2d_backward_case(stem)};
}

/// Returns cases for a rank's batch of images that a network reconstructs, without and with a weight per element, and
/// for predictions of 8 numbers per sample.
std::vector<testing::OpCase> regression_loss_bench() {
  const ops::RegressionLossOptions huber{ops::RegressionLoss::huber, 1};
  return {testing::regression_loss_case({Shape{32, 224, 224, 3}, {}, -1, true}, DType::f32),
          testing::regression_loss_case({Shape{32, 224, 224, 3}, huber, -1, true}, DType::f32),
          testing::regression_loss_case({Shape{4096, 8}, {}, -1, true}, DType::f32),
          testing::regression_loss_case(
              {Shape{32, 224, 224, 3}, {}, -1, true, testing::PredictionGradient::apart, testing::Weighting::element},
              DType::f32)};
}

/// Returns cases for the first stage of ResNet-20 (batch 128) and of ResNet-50 (batch 32).
std::vector<testing::OpCase> relu_bench() {
  std::vector<testing::OpCase> items;
  for (const Shape& shape : {Shape{128, 32, 32, 16}, Shape{32, 56, 56, 256}}) {
    items.push_back(testing::relu_forward_case(shape, DType::f32));
    items.push_back(testing::relu_forward_case(shape, DType::f32, true));
    items.push_back(testing::relu_backward_case(shape, DType::f32));
  }
  return items;
}

/// Returns cases for the gradients of ResNet-50 and of GPT-2 small.
std::vector<testing::OpCase> scale_bench() {
  return {testing::scale_case({25557032}, DType::f32, true), testing::scale_case({124439808}, DType::f32, true)};
}

/// Returns cases for attention scores (B, heads, T, T): GPT-2 small on a sequence of 1024 with a causal mask, ViT-B/16
/// on 4 images.
std::vector<testing::OpCase> softmax_bench() {
  const Shape gpt2{1, 12, 1024, 1024};
  const Shape vit{4, 12, 197, 197};
  return {testing::softmax_forward_case(gpt2, DType::f32, ops::SoftmaxMask::causal),
          testing::softmax_backward_case(gpt2, DType::f32),
          testing::softmax_forward_case(vit, DType::f32, ops::SoftmaxMask::none),
          testing::softmax_backward_case(vit, DType::f32)};
}

/// Returns cases for CIFAR-10 and ImageNet batches of one rank.
std::vector<testing::OpCase> softmax_cross_entropy_bench() {
  return {testing::softmax_cross_entropy_case({128, 10, DType::f32, 0, -1, true}),
          testing::softmax_cross_entropy_case({64, 1000, DType::f32, 0.1, -1, true}),
          testing::softmax_cross_entropy_case({256, 1000, DType::f32, 0.1, -1, true})};
}

/// Returns cases for strided copies: transposed matrices, attention heads moved before positions (GPT-2 small, 8
/// sequences of 1024), channels of a ResNet-50 activation moved last, casts, and a part of every row.
std::vector<testing::OpCase> strided_copy_bench() {
  using testing::permuted_copy;
  using testing::strided_copy_case;
  std::vector<testing::OpCase> items;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    items.push_back(strided_copy_case(permuted_copy({4096, 4096}, {1, 0}, dtype, dtype)));
    items.push_back(strided_copy_case(permuted_copy({8, 1024, 12, 64}, {0, 2, 1, 3}, dtype, dtype)));
    items.push_back(strided_copy_case(permuted_copy({32, 64, 56, 56}, {0, 2, 3, 1}, dtype, dtype)));
    items.push_back(strided_copy_case(
        {"row slice", {8192, 3072}, testing::sliced(1, 768, 1536), {8192, 768}, testing::entire, dtype, dtype}));
  }
  items.push_back(strided_copy_case(testing::cast_copy({8192, 3072}, DType::f32, DType::bf16)));
  items.push_back(strided_copy_case(testing::cast_copy({8192, 3072}, DType::bf16, DType::f32)));
  return items;
}

/// Returns cases for the two shortcuts of ResNet-20 (batch 128).
std::vector<testing::OpCase> subsample_pad_bench() {
  std::vector<testing::OpCase> items;
  for (const testing::SubsamplePadParams& p :
       {testing::SubsamplePadParams{{128, 32, 32, 16}, 32}, testing::SubsamplePadParams{{128, 16, 16, 32}, 64}}) {
    items.push_back(testing::subsample_pad_forward_case(p));
    items.push_back(testing::subsample_pad_backward_case(p, ops::GradMode::overwrite));
    items.push_back(testing::subsample_pad_backward_case(p, ops::GradMode::accumulate));
  }
  return items;
}

/// Returns cases for a rank's batch of ImageNet, and for 1024 tokens of GPT-2.
std::vector<testing::OpCase> top_k_bench() {
  return {testing::top_k_case({256, 1000, 5}, DType::f32), testing::top_k_case({1024, 50257, 5}, DType::f32)};
}

}  // namespace lockstep::bench
