#include <lockstep/nn/plan/norm_trial.hpp>

#include <algorithm>
#include <cmath>
#include <limits>

#include <lockstep/kernels/batch_norm_given.hpp>
#include <lockstep/kernels/fill.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/tensor/copy.hpp>

namespace lockstep::nn {
namespace {

constexpr double kEpsilon = 1e-5;
// Relative tolerance between the results of two plans. The plans may sum the same 16-bit numbers in different orders,
// and one of them may round gradients once more than the other.
constexpr double kTolerance = 0.05;
// Number of elements of the masked gradient g that are compared.
constexpr std::int64_t kCompared = std::int64_t{1} << 20;

Tensor random_like(Context& context, const Shape& shape, DType dtype, std::uint64_t seed) {
  const auto bytes = shape.numel() * static_cast<std::int64_t>(size_of(dtype));
  return small_random_numbers(context, (bytes + 1) / 2, seed);
}

TensorView view_of(const Tensor& memory, DType dtype, const Shape& shape) {
  return {memory.view().data, dtype, memory.view().device, shape};
}

}  // namespace

Tensor small_random_numbers(Context& context, std::int64_t count, std::uint64_t seed) {
  constexpr std::int64_t kBlock = std::int64_t{1} << 20;
  Tensor memory = Tensor::zeros(context, Shape{count}, DType::bf16);
  const std::int64_t block = std::min(count, kBlock);
  const Tensor random = Tensor::rand(context, Shape{block}, DType::bf16, seed);
  for (std::int64_t at = 0; at < count; at += block) {
    const std::int64_t size = std::min(block, count - at);
    copy(context, random.view().slice(0, 0, size), memory.view().slice(0, at, at + size));
  }
  context.synchronize();
  return memory;
}

NormTrial::NormTrial(Context& context, const ops::ConvDesc& desc, ops::ConvPass pass)
    : context_(context),
      desc_(desc),
      pass_(pass),
      channels_(pass == ops::ConvPass::forward ? desc.out_channels : desc.in_channels) {
  const bool forward = pass == ops::ConvPass::forward;
  const Shape shape = forward ? desc.y_shape() : desc.x_shape();
  const DType sums = ops::accumulation_dtype(desc.dtype);
  vectors_ = Tensor::rand(context, Shape{4, channels_}, sums, 1);
  given_ = Tensor::zeros(context, Shape{3, channels_}, sums);
  stats_ = Tensor::zeros(context, Shape{2 * channels_ + 1}, sums);
  coefficients_ = Tensor::zeros(context, Shape{4, channels_}, sums);
  norm_workspace_ = Tensor::zeros(context,
                                  Shape{static_cast<std::int64_t>(ops::batch_norm_workspace_bytes(
                                      context, TensorView(nullptr, desc.dtype, context.device(), shape)))},
                                  DType::u8);
  if (forward) {
    return;
  }
  vectors2_ = Tensor::rand(context, Shape{4, channels_}, sums, 2);
  sums_ = Tensor::zeros(context, Shape{2, channels_}, sums);
  sums2_ = Tensor::zeros(context, Shape{2, channels_}, sums);
  gradients_ = Tensor::zeros(context, Shape{4, channels_}, sums);
  x_ = random_like(context, shape, desc.dtype, 3);
  mask_ = random_like(context, Shape{static_cast<std::int64_t>(ops::relu_mask_bytes(shape.numel()))}, DType::u8, 4);
  if (desc.norm.addend) {
    addend_ = random_like(context, shape, desc.dtype, 5);
  }
  if (desc.norm.pair) {
    x2_ = random_like(context, shape, desc.dtype, 6);
  }
  context.synchronize();
}

void NormTrial::enqueue(const ops::ConvPlan& plan, const Operands& o, bool store) {
  const auto row = [&](const Tensor& of, std::int64_t i) { return of.view().slice(0, i, i + 1).reshape({channels_}); };
  const TensorView given = given_.view().slice(0, 0, desc_.norm.pair ? 3 : 2);
  if (pass_ == ops::ConvPass::forward) {
    if (plan.serves_norm()) {
      ops::conv2d_for_norm(context_, plan, o.a, o.b, o.out, o.workspace, {.sums = given, .shift = row(vectors_, 0)});
      ops::batch_norm_coefficients_given(context_, o.out, {}, given, row(vectors_, 0), row(vectors_, 1),
                                         row(vectors_, 2), kEpsilon, 0.1, stats_.view(), {}, {}, coefficients_.view(),
                                         norm_workspace_.view());
      return;
    }
    ops::conv2d(context_, plan, o.a, o.b, {}, o.out, o.workspace);
    ops::batch_norm_coefficients(context_, o.out, {}, row(vectors_, 1), row(vectors_, 2), kEpsilon, 0.1, stats_.view(),
                                 {}, {}, coefficients_.view(), norm_workspace_.view());
    return;
  }
  const TensorView& dx = o.out;
  const auto like_dx = [&](const Tensor& memory, bool wanted) {
    return wanted ? view_of(memory, desc_.dtype, dx.shape) : TensorView();
  };
  const TensorView x = like_dx(x_, true);
  const TensorView addend = like_dx(addend_, desc_.norm.addend);
  const TensorView x2 = like_dx(x2_, desc_.norm.pair);
  const TensorView mask = view_of(mask_, DType::u8, Shape{static_cast<std::int64_t>(ops::relu_mask_bytes(dx.numel()))});
  ops::NormBackward first{
      x, vectors_.view(), sums_.view(), row(gradients_, 0), row(gradients_, 1), ops::GradMode::overwrite};
  ops::NormBackward second{
      x2, vectors2_.view(), sums2_.view(), row(gradients_, 2), row(gradients_, 3), ops::GradMode::overwrite};
  if (plan.serves_norm()) {
    ops::conv2d_for_norm(context_, plan, o.a, o.b, dx, o.workspace,
                         {.sums = given,
                          .addend = addend,
                          .mask = mask,
                          .x = x,
                          .coefficients = vectors_.view(),
                          .x2 = x2,
                          .coefficients2 = desc_.norm.pair ? vectors2_.view() : TensorView()});
    for (std::int64_t i = 1; i < given.shape[0]; ++i) {
      const ops::NormBackward& norm = i == 1 ? first : second;
      ops::batch_norm_gradients_given(context_, row(given_, 0), row(given_, i), norm.mode, norm.sums, norm.dweight,
                                      norm.dbias);
    }
    return;
  }
  ops::conv2d(context_, plan, o.a, o.b, {}, dx, o.workspace);
  if (desc_.norm.pair) {
    ops::batch_norm_backward_reduce_pair(context_, dx, addend, mask, first, second, {}, dx, norm_workspace_.view());
  } else {
    ops::batch_norm_backward_reduce(context_, dx, addend, mask, x, first.coefficients, {}, first.mode, first.sums,
                                    first.dweight, first.dbias, store || desc_.norm.addend ? dx : TensorView(),
                                    norm_workspace_.view());
  }
}

void NormTrial::run(const ops::ConvPlan& plan, const Operands& operands) {
  enqueue(plan, operands, false);
}

std::vector<double> NormTrial::results(const TensorView& out, bool serves) {
  CpuContext host;
  std::vector<double> all;
  const auto take = [&](const TensorView& view) {
    const Tensor on_host = Tensor::zeros(host, view.shape, view.dtype);
    const Tensor values = Tensor::zeros(host, view.shape, DType::f64);
    copy(context_, view, on_host.view());
    context_.synchronize();
    copy(host, on_host.view(), values.view());
    host.synchronize();
    const auto* const from = values.view().as<double>();
    all.insert(all.end(), from, from + view.numel());
  };
  // In forward, the results are sums of deviations from the channel means of the first checked plan. For this plan
  // itself, the sums are 0. To a plan that also computes the norm's sums, check() passes these means as `shift`.
  if (pass_ == ops::ConvPass::forward) {
    if (serves) {
      take(given_.view().slice(0, 0, 2));
    } else {
      all.assign(static_cast<std::size_t>(channels_), 0.0);
      take(stats_.view().slice(0, channels_, 2 * channels_));
    }
    return all;
  }
  take(sums_.view());
  take(desc_.norm.pair ? sums2_.view() : sums_.view());
  take(out.reshape({out.numel()}).slice(0, 0, std::min(out.numel(), kCompared)));
  return all;
}

void NormTrial::check(const ops::ConvPlan& plan, const Operands& operands) {
  require<UnsupportedError>(checks() || !plan.serves_norm(),
                            "it serves a norm, expected a pass without one before, to compare it with");
  // Fills the outputs with NaN. An element that the plan does not write, or to which it only adds, stays NaN and fails
  // the comparison.
  const double nan = std::numeric_limits<double>::quiet_NaN();
  ops::fill(context_, nan, given_.view());
  ops::fill(context_, nan, operands.out);
  enqueue(plan, operands, true);
  std::vector<double> got = results(operands.out, plan.serves_norm());
  if (!checks()) {
    expected_ = std::move(got);
    if (pass_ == ops::ConvPass::forward) {
      copy(context_, coefficients_.view().slice(0, 2, 3), vectors_.view().slice(0, 0, 1));
      context_.synchronize();
    }
    return;
  }
  const auto channels = static_cast<std::size_t>(channels_);
  const std::int64_t rows = operands.out.numel() / channels_;
  double largest = 0;
  for (std::size_t i = 4 * channels; i < expected_.size(); ++i) {
    largest = std::max(largest, std::abs(expected_[i]));
  }
  for (std::size_t i = 0; i < got.size(); ++i) {
    // The tolerance is kTolerance * scale. In forward, the scale of a sum of squares is this sum, and the scale of a
    // sum of deviations is sqrt(rows * sum of squares). In backward, the scale of a sum is the sum of g, whose terms
    // all have one sign. The scale of an element of g is the largest element of g.
    double scale = largest;
    if (pass_ == ops::ConvPass::forward) {
      const double squares = expected_[channels + i % channels];
      scale = i < channels ? std::sqrt(squares * static_cast<double>(rows)) : squares;
    } else if (i < 4 * channels) {
      scale = std::abs(expected_[i % channels]);
    }
    require<UnsupportedError>(std::abs(got[i] - expected_[i]) <= kTolerance * scale, "it gives ", got[i], ", expected ",
                              expected_[i], ", as the pass without a norm and the norm's own kernel give");
  }
}

}  // namespace lockstep::nn
