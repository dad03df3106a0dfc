#include <lockstep/kernels/conv2d.hpp>

#include <algorithm>
#include <exception>
#include <string_view>
#include <utility>

#include <lockstep/kernels/batch_norm.hpp>
#include <lockstep/kernels/detail/providers.hpp>

namespace lockstep::ops {
namespace {

constexpr std::uintptr_t kWorkspaceAlignment = 64;

const char* pass_name(ConvPass pass) {
  static constexpr const char* kNames[] = {"forward", "backward_data", "backward_weights"};
  return kNames[static_cast<std::size_t>(pass)];
}

/// Checks all members of `d` except those of the window, which y_shape() checks.
void check_extents(const ConvDesc& d) {
  require<ShapeError>(d.spatial_rank >= 1 && d.spatial_rank <= 3, "conv2d: spatial_rank is ", d.spatial_rank,
                      ", expected 1, 2 or 3");
  require<ShapeError>(d.batch >= 1 && d.in_channels >= 1 && d.out_channels >= 1, "conv2d: batch ", d.batch,
                      ", in_channels ", d.in_channels, ", out_channels ", d.out_channels, ", expected at least 1 each");
  require<ShapeError>(d.groups >= 1 && d.in_channels % d.groups == 0 && d.out_channels % d.groups == 0,
                      "conv2d: groups is ", d.groups, ", expected a divisor of in_channels ", d.in_channels,
                      " and out_channels ", d.out_channels);
  for (std::size_t i = 0; i < static_cast<std::size_t>(d.spatial_rank); ++i) {
    require<ShapeError>(d.in_size[i] >= 1 && d.kernel[i] >= 1 && d.stride[i] >= 1 && d.dilation[i] >= 1 &&
                            d.pad_before[i] >= 0 && d.pad_after[i] >= 0,
                        "conv2d: spatial axis ", i, " has size ", d.in_size[i], ", kernel ", d.kernel[i], ", stride ",
                        d.stride[i], ", dilation ", d.dilation[i], ", padding ", d.pad_before[i], " and ",
                        d.pad_after[i], ", expected at least 1 each and no negative padding");
  }
}

void check_desc(const ConvDesc& desc, ConvPass pass) {
  require<DTypeError>(is_floating(desc.dtype), "conv2d: dtype is ", desc.dtype, ", expected a floating-point type");
  require<UsageError>(
      pass == ConvPass::forward || desc.grad_mode != GradMode::ignore,
      "conv2d: grad_mode is ignore, expected overwrite or accumulate: a gradient that is not wanted needs no plan");
  const ConvNorm& norm = desc.norm;
  const bool served = pass == ConvPass::forward
                          ? !desc.bias && !norm.addend && !norm.pair
                          : pass == ConvPass::backward_data && desc.grad_mode == GradMode::overwrite;
  require<UsageError>(norm.wanted || (!norm.addend && !norm.pair), "conv2d ", pass_name(pass), ": ",
                      norm.addend ? "an addend" : "a pair", " without a norm, expected norm.wanted");
  require<UsageError>(!norm.wanted || served, "conv2d ", pass_name(pass), ": a norm is wanted",
                      norm.addend ? " with an addend" : "", norm.pair ? " with a pair" : "",
                      desc.bias ? " with a bias" : "",
                      desc.grad_mode == GradMode::accumulate ? " in mode accumulate" : "",
                      ", expected forward alone, without a bias, or backward_data that overwrites");
  (void)desc.x_shape().numel();
  (void)desc.weights_shape().numel();
  (void)desc.y_shape().numel();
}

void check_operand(const TensorView& view, std::string_view name, const ConvPlan& plan, DType dtype,
                   const Shape& shape) {
  require<ShapeError>(view.shape == shape, "conv2d ", pass_name(plan.pass()), ": ", name, " is ", view.shape,
                      ", expected ", shape);
  require<DTypeError>(view.dtype == dtype, "conv2d ", pass_name(plan.pass()), ": ", name, " is ", view.dtype,
                      ", expected ", dtype);
  require<ShapeError>(view.is_contiguous(), "conv2d ", pass_name(plan.pass()), ": ", name, " ", view.shape,
                      " with strides ", view.strides, " is not contiguous, expected a contiguous tensor");
}

/// Checks all operands of conv2d(), but not whether the output overlaps another operand.
void check_operands(const Context& context, const ConvPlan& plan, const TensorView& a, const TensorView& b,
                    const TensorView& bias, const TensorView& out, const TensorView& workspace) {
  const ConvDesc& desc = plan.desc();
  require<DeviceError>(context.device() == plan.device(), "conv2d: the context is on ", context.device(), ", expected ",
                       plan.device(), ", for which the plan was made");
  require_on(context.device(), "conv2d", {&a, &b, &bias, &out, &workspace});
  switch (plan.pass()) {
    case ConvPass::forward:
      check_operand(a, "x", plan, desc.dtype, desc.x_shape());
      check_operand(b, "weights", plan, desc.dtype, desc.weights_shape());
      check_operand(out, "y", plan, desc.dtype, desc.y_shape());
      break;
    case ConvPass::backward_data:
      check_operand(a, "dy", plan, desc.dtype, desc.y_shape());
      check_operand(b, "weights", plan, desc.dtype, desc.weights_shape());
      check_operand(out, "dx", plan, desc.dtype, desc.x_shape());
      break;
    case ConvPass::backward_weights:
      check_operand(a, "x", plan, desc.dtype, desc.x_shape());
      check_operand(b, "dy", plan, desc.dtype, desc.y_shape());
      check_operand(out, "dweights", plan, accumulation_dtype(desc.dtype), desc.weights_shape());
      break;
  }
  const bool with_bias = desc.bias && plan.pass() == ConvPass::forward;
  require<ShapeError>(bias.given() == with_bias, "conv2d ", pass_name(plan.pass()), ": bias is ",
                      bias.given() ? "given, expected none" : "missing, expected it", ": the plan was made ",
                      with_bias ? "with" : "without", " one");
  if (with_bias) {
    check_operand(bias, "bias", plan, accumulation_dtype(desc.dtype), Shape{desc.out_channels});
  }
  const std::size_t bytes = plan.workspace_bytes();
  if (bytes > 0) {
    require<DTypeError>(workspace.dtype == DType::u8, "conv2d: workspace is ", workspace.dtype, ", expected u8");
    require<ShapeError>(workspace.is_contiguous() && workspace.bytes() >= bytes, "conv2d: workspace is ",
                        workspace.shape, ", expected ", bytes, " contiguous bytes");
    require<ShapeError>(reinterpret_cast<std::uintptr_t>(workspace.data) % kWorkspaceAlignment == 0,
                        "conv2d: workspace is at address ", workspace.data, ", expected an address aligned to ",
                        kWorkspaceAlignment);
    require<ShapeError>(!overlaps(workspace, a) && !overlaps(workspace, b) && !overlaps(workspace, out) &&
                            !(with_bias && overlaps(workspace, bias)),
                        "conv2d: workspace overlaps an operand, expected memory of its own for each");
  }
}

/// Checks the additional operands of a plan that also does the work of ConvNorm, but not whether these operands overlap
/// other operands.
void check_norm(const Context& context, const ConvPlan& plan, const ConvNormOperands& norm, const TensorView& out) {
  const ConvDesc& desc = plan.desc();
  const bool forward = plan.pass() == ConvPass::forward;
  const DType sums = accumulation_dtype(desc.dtype);
  const std::int64_t channels = forward ? desc.out_channels : desc.in_channels;
  require_on(
      context.device(), "conv2d",
      {&norm.sums, &norm.shift, &norm.addend, &norm.mask, &norm.x, &norm.coefficients, &norm.x2, &norm.coefficients2});
  const auto check = [&](const TensorView& view, std::string_view name, bool wanted, DType dtype, const Shape& shape) {
    require<UsageError>(view.given() == wanted, "conv2d ", pass_name(plan.pass()), ": ", name, " is ",
                        view.given() ? "given, expected none" : "missing, expected it", ": the plan was made ",
                        wanted ? "with" : "without", " it");
    if (wanted) {
      check_operand(view, name, plan, dtype, shape);
    }
  };
  const bool pair = desc.norm.pair;
  check(norm.sums, "sums", true, sums, Shape{pair ? 3 : 2, channels});
  check(norm.shift, "shift", forward, sums, Shape{channels});
  check(norm.addend, "addend", desc.norm.addend, desc.dtype, out.shape);
  check(norm.mask, "mask", !forward, DType::u8, Shape{static_cast<std::int64_t>(relu_mask_bytes(out.numel()))});
  check(norm.x, "norm input", !forward, desc.dtype, out.shape);
  check(norm.coefficients, "coefficients", !forward, sums, Shape{4, channels});
  check(norm.x2, "second norm input", pair, desc.dtype, out.shape);
  check(norm.coefficients2, "second coefficients", pair, sums, Shape{4, channels});
}

}  // namespace

Shape ConvDesc::x_shape() const {
  check_extents(*this);
  Shape shape{batch};
  for (std::size_t i = 0; i < static_cast<std::size_t>(spatial_rank); ++i) {
    shape.push_back(in_size[i]);
  }
  shape.push_back(in_channels);
  return shape;
}

Shape ConvDesc::weights_shape() const {
  check_extents(*this);
  Shape shape{out_channels};
  for (std::size_t i = 0; i < static_cast<std::size_t>(spatial_rank); ++i) {
    shape.push_back(kernel[i]);
  }
  shape.push_back(in_channels / groups);
  return shape;
}

Shape ConvDesc::y_shape() const {
  check_extents(*this);
  Shape shape{batch};
  for (std::size_t i = 0; i < static_cast<std::size_t>(spatial_rank); ++i) {
    const std::int64_t span = in_size[i] + pad_before[i] + pad_after[i] - dilation[i] * (kernel[i] - 1) - 1;
    require<ShapeError>(span >= 0, "conv2d: spatial axis ", i, ": a kernel of ", kernel[i], " with dilation ",
                        dilation[i], " does not fit in ", in_size[i], " padded by ", pad_before[i], " and ",
                        pad_after[i], ", expected a larger input or a smaller kernel");
    shape.push_back(span / stride[i] + 1);
  }
  shape.push_back(out_channels);
  return shape;
}

double ConvDesc::flops() const {
  return 2.0 * static_cast<double>(y_shape().numel()) *
         (static_cast<double>(weights_shape().numel()) / static_cast<double>(out_channels));
}

void ConvPlan::run_for_norm(Context& /*context*/, const TensorView& /*a*/, const TensorView& /*b*/,
                            const TensorView& /*out*/, const TensorView& /*workspace*/,
                            const ConvNormOperands& /*norm*/) const {
  throw StateError(concat("conv2d ", pass_name(pass_), ": '", choice(), "' serves no norm, expected conv2d()"));
}

bool conv_may_serve_norm(const ConvDesc& desc, ConvPass pass) {
  const auto axes = static_cast<std::ptrdiff_t>(desc.spatial_rank);
  const bool strided = std::any_of(desc.stride.begin(), desc.stride.begin() + axes, [](auto s) { return s != 1; });
  return desc.norm.wanted && size_of(desc.dtype) == 2 && desc.in_channels % 8 == 0 && desc.out_channels % 8 == 0 &&
         desc.groups == 1 && desc.pad_mode == PadMode::zero && (pass == ConvPass::forward || !strided);
}

std::vector<std::string> conv2d_choices(Context& context, const ConvDesc& desc, ConvPass pass,
                                        const ConvListing& listing) {
  check_desc(desc, pass);
  std::vector<std::string> all;
  for (const ConvProvider& provider : conv_providers()) {
    if (provider.device == context.device().kind) {
      for (std::string& choice : provider.choices(context, desc, pass, listing)) {
        all.push_back(std::move(choice));
      }
    }
  }
  return all;
}

void prepare_conv2d(Context& context, std::span<const ConvCall> calls, Engines engines, int threads) {
  for (const ConvCall& call : calls) {
    check_desc(call.desc, call.pass);
  }
  for (const ConvProvider& provider : conv_providers()) {
    if (provider.device == context.device().kind && provider.prepare != nullptr) {
      provider.prepare(context, calls, engines, threads);
    }
  }
}

std::unique_ptr<ConvPlan> plan_conv2d(Context& context, const ConvDesc& desc, ConvPass pass,
                                      const std::string& choice) {
  check_desc(desc, pass);
  std::string_view name = choice;
  name = name.substr(0, name.find(':'));
  std::string known;
  std::exception_ptr refusal;
  for (const ConvProvider& provider : conv_providers()) {
    if (provider.device != context.device().kind) {
      require<UnsupportedError>(choice.empty() || provider.name != name, "conv2d: choice '", choice,
                                "' is for another kind of device than ", context.device(), ", expected one for that");
      continue;
    }
    if (choice.empty()) {
      ConvDesc bare = desc;
      bare.norm = {};  // a plan that also computes sums for a norm must not be the first guess
      auto made = first_planned(provider.choices(context, bare, pass, {}), refusal,
                                [&](const std::string& one) { return provider.plan(context, desc, pass, one); });
      if (made != nullptr) {
        return made;
      }
    } else if (provider.name == name) {
      return provider.plan(context, desc, pass, choice);
    }
    known += concat(known.empty() ? "" : ", ", provider.name);
  }
  if (refusal != nullptr) {
    std::rethrow_exception(refusal);
  }
  require<UsageError>(choice.empty(), "conv2d: choice is '", choice, "', expected one of ", known, " on ",
                      context.device());
  throw UnsupportedError(concat("conv2d ", pass_name(pass), ": no provider for ", desc.dtype, " on ", context.device(),
                                " in this build, expected another dtype or a build with one"));
}

void conv2d(Context& context, const ConvPlan& plan, const TensorView& a, const TensorView& b, const TensorView& bias,
            const TensorView& out, const TensorView& workspace) {
  require<UsageError>(!plan.serves_norm(), "conv2d ", pass_name(plan.pass()), ": '", plan.choice(),
                      "' serves a norm, whose operands are missing; expected conv2d_for_norm()");
  check_operands(context, plan, a, b, bias, out, workspace);
  require<ShapeError>(!overlaps(out, a) && !overlaps(out, b) && !(bias.given() && overlaps(out, bias)), "conv2d ",
                      pass_name(plan.pass()), ": the output overlaps an input, expected memory of its own for each");
  dispatch(context, "conv2d", [&plan, a, b, bias, out, workspace](auto& concrete) -> void {
    plan.run(concrete, a, b, bias, out, workspace);
  });
}

void conv2d_for_norm(Context& context, const ConvPlan& plan, const TensorView& a, const TensorView& b,
                     const TensorView& out, const TensorView& workspace, const ConvNormOperands& norm) {
  require<UsageError>(plan.serves_norm(), "conv2d ", pass_name(plan.pass()), ": '", plan.choice(),
                      "' serves no norm, whose operands are given; expected conv2d()");
  check_operands(context, plan, a, b, {}, out, workspace);
  check_norm(context, plan, norm, out);
  const std::pair<const TensorView*, const char*> operands[] = {{&a, "the first operand"},
                                                                {&b, "the second operand"},
                                                                {&norm.shift, "shift"},
                                                                {&norm.addend, "addend"},
                                                                {&norm.mask, "mask"},
                                                                {&norm.x, "norm input"},
                                                                {&norm.coefficients, "coefficients"},
                                                                {&norm.x2, "second norm input"},
                                                                {&norm.coefficients2, "second coefficients"},
                                                                {&workspace, "workspace"},
                                                                {&norm.sums, "sums"}};
  for (const auto& [view, name] : operands) {
    require<ShapeError>(!overlaps(out, *view), "conv2d ", pass_name(plan.pass()), ": the output overlaps ", name,
                        ", expected memory of its own for each");
    require<ShapeError>(view == &norm.sums || !overlaps(norm.sums, *view), "conv2d ", pass_name(plan.pass()),
                        ": sums overlap ", name, ", expected memory of its own for each");
  }
  dispatch(context, "conv2d", [&plan, a, b, out, workspace, norm](auto& concrete) -> void {
    plan.run_for_norm(concrete, a, b, out, workspace, norm);
  });
}

}  // namespace lockstep::ops
