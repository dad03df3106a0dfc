#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <lockstep/kernels/batch_norm.hpp>
#include <lockstep/kernels/conv2d.hpp>

#include "tests/support/op_case.hpp"

namespace lockstep::testing {

inline constexpr ops::ConvPass kConvPasses[] = {ops::ConvPass::forward, ops::ConvPass::backward_data,
                                                ops::ConvPass::backward_weights};

struct ConvCase {
  const char* name;
  ops::ConvDesc desc;
};

/// Makes a test case for one pass of a convolution with one choice. Inputs: a, b, and bias if the pass adds one;
/// output: out, as conv2d() writes it.
inline OpCase conv2d_case(const std::string& name, const ops::ConvDesc& desc, ops::ConvPass pass,
                          const std::string& choice) {
  using ops::ConvPass;
  static constexpr const char* kNames[] = {"forward", "backward_data", "backward_weights"};
  const bool forward = pass == ConvPass::forward;
  const bool with_bias = forward && desc.bias;
  const bool accumulate = !forward && desc.grad_mode == ops::GradMode::accumulate;
  const DType out_dtype = pass == ConvPass::backward_weights ? ops::accumulation_dtype(desc.dtype) : desc.dtype;
  OpCase item;
  item.name = concat("conv2d ", kNames[static_cast<std::size_t>(pass)], ' ', name, ' ', desc.dtype, ' ', choice,
                     with_bias ? " bias" : "", accumulate ? " accumulate" : "");
  item.dtype = desc.dtype;
  item.inputs = {
      {"a", pass == ConvPass::backward_data ? desc.y_shape() : desc.x_shape(), desc.dtype, uniform(1, -1, 1)},
      {"b", pass == ConvPass::backward_weights ? desc.y_shape() : desc.weights_shape(), desc.dtype, uniform(2, -1, 1)}};
  add_if(with_bias, item.inputs,
         {"bias", Shape{desc.out_channels}, ops::accumulation_dtype(desc.dtype), uniform(3, -1, 1)});
  item.outputs = {{"out",
                   forward                           ? desc.y_shape()
                   : pass == ConvPass::backward_data ? desc.x_shape()
                                                     : desc.weights_shape(),
                   out_dtype, accumulate ? uniform(4, -1, 1) : Generator{}}};
  item.prepare = [=](Context& context) {
    const std::shared_ptr<ops::ConvPlan> plan = ops::plan_conv2d(context, desc, pass, choice);
    return PreparedOp{plan->workspace_bytes(), [=](Context& on, Views in, Views out, const TensorView& workspace) {
                        ops::conv2d(on, *plan, in[0], in[1], with_bias ? in[2] : TensorView(), out[0], workspace);
                      }};
  };
  item.flops = desc.flops();
  item.tolerance = desc.dtype == DType::f64 ? 1e-14 : 2e-6 + rounding_of(out_dtype);
  return item;
}

/// Makes a test case for one pass of a convolution that also computes sums for a batch norm. Inputs: a, b, and the
/// tensors of ConvNormOperands that desc.norm calls for; outputs: out and sums.
inline OpCase conv2d_norm_case(const std::string& name, const ops::ConvDesc& desc, ops::ConvPass pass,
                               const std::string& choice) {
  const bool forward = pass == ops::ConvPass::forward;
  const DType wide = ops::accumulation_dtype(desc.dtype);
  const Shape out = forward ? desc.y_shape() : desc.x_shape();
  const std::int64_t channels = out.back();
  OpCase item;
  item.name = concat("conv2d ", forward ? "forward" : "backward_data", " for a norm ", name, ' ', desc.dtype, ' ',
                     choice, desc.norm.addend ? " addend" : "", desc.norm.pair ? " pair" : "");
  item.dtype = desc.dtype;
  item.inputs = {{"a", forward ? desc.x_shape() : desc.y_shape(), desc.dtype, uniform(1, -1, 1)},
                 {"b", desc.weights_shape(), desc.dtype, uniform(2, -1, 1)}};
  const auto input = [&](const char* what, const Shape& shape, DType dtype, const Generator& start) {
    item.inputs.push_back({what, shape, dtype, start});
    return item.inputs.size() - 1;
  };
  using Operand = TensorView ops::ConvNormOperands::*;
  std::vector<std::pair<Operand, std::size_t>> given;
  if (forward) {
    given.emplace_back(&ops::ConvNormOperands::shift, input("shift", {channels}, wide, uniform(3, -1, 1)));
  } else {
    const auto mask = static_cast<std::int64_t>(ops::relu_mask_bytes(out.numel()));
    given.emplace_back(&ops::ConvNormOperands::mask, input("mask", {mask}, DType::u8, integers(4, 0, 255)));
    given.emplace_back(&ops::ConvNormOperands::x, input("x", out, desc.dtype, uniform(5, -1, 1)));
    given.emplace_back(&ops::ConvNormOperands::coefficients,
                       input("coefficients", {4, channels}, wide, uniform(6, -1, 1)));
    if (desc.norm.addend) {
      given.emplace_back(&ops::ConvNormOperands::addend, input("addend", out, desc.dtype, uniform(7, -1, 1)));
    }
    if (desc.norm.pair) {
      given.emplace_back(&ops::ConvNormOperands::x2, input("x2", out, desc.dtype, uniform(8, -1, 1)));
      given.emplace_back(&ops::ConvNormOperands::coefficients2,
                         input("coefficients2", {4, channels}, wide, uniform(9, -1, 1)));
    }
  }
  item.outputs = {{"out", out, desc.dtype, {}}, {"sums", {desc.norm.pair ? 3 : 2, channels}, wide, {}}};
  item.prepare = [=](Context& context) {
    const std::shared_ptr<ops::ConvPlan> plan = ops::plan_conv2d(context, desc, pass, choice);
    return PreparedOp{plan->workspace_bytes(), [=](Context& on, Views in, Views to, const TensorView& workspace) {
                        ops::ConvNormOperands norm{.sums = to[1]};
                        for (const auto& operand : given) {
                          norm.*operand.first = in[operand.second];
                        }
                        ops::conv2d_for_norm(on, *plan, in[0], in[1], to[0], workspace, norm);
                      }};
  };
  item.flops = desc.flops();
  item.tolerance = desc.dtype == DType::f64 ? 1e-13 : 1e-5 + rounding_of(desc.dtype);
  return item;
}

/// Returns a square two-dimensional convolution with the same padding before and after.
inline ops::ConvDesc square(std::int64_t batch, std::int64_t size, std::int64_t in, std::int64_t out,
                            std::int64_t kernel, std::int64_t stride, std::int64_t pad) {
  return {.batch = batch,
          .in_channels = in,
          .out_channels = out,
          .in_size = {size, size, 1},
          .kernel = {kernel, kernel, 1},
          .stride = {stride, stride, 1},
          .pad_before = {pad, pad, 0},
          .pad_after = {pad, pad, 0}};
}

/// Returns small convolutions that together use every option of a ConvDesc.
inline std::vector<ConvCase> conv_cases() {
  std::vector<ConvCase> cases{
      {"pointwise_one_pixel", square(1, 1, 1, 1, 1, 1, 0)},  {"pointwise_16_to_33", square(2, 5, 16, 33, 1, 1, 0)},
      {"pointwise_stride_2", square(2, 7, 17, 16, 1, 2, 0)}, {"k3_c1_to_1", square(1, 5, 1, 1, 3, 1, 1)},
      {"k3_c3_to_16", square(2, 9, 3, 16, 3, 1, 1)},         {"k3_c4_to_16", square(3, 17, 4, 16, 3, 1, 1)},
      {"k3_c16_to_16", square(2, 13, 16, 16, 3, 1, 1)},      {"k3_c17_to_10", square(2, 7, 17, 10, 3, 1, 1)},
      {"k3_c70_to_66", square(1, 3, 70, 66, 3, 1, 1)},       {"k3_stride_2_odd", square(2, 9, 16, 32, 3, 2, 1)},
      {"k3_unpadded", square(2, 8, 4, 16, 3, 1, 0)},         {"k5_c16_to_33", square(1, 7, 16, 33, 5, 1, 2)},
      {"k7_stride_2", square(1, 23, 4, 16, 7, 2, 3)},        {"kernel_is_image", square(2, 7, 16, 10, 7, 1, 0)},
  };
  const auto add = [&](const char* name, ops::ConvDesc d, const auto& change) {
    change(d);
    cases.push_back({name, d});
  };
  // Stride 2 over an even size: one row and column of padding before the image, none after it.
  add("k3_stride_2_even", square(2, 16, 16, 32, 3, 2, 1), [](auto& d) { d.pad_after = {0, 0, 0}; });
  cases.push_back({"asymmetric",
                   {.batch = 2,
                    .in_channels = 4,
                    .out_channels = 16,
                    .in_size = {6, 9, 1},
                    .kernel = {3, 5, 1},
                    .pad_before = {2, 0, 0},
                    .pad_after = {0, 3, 0}}});
  add("dilated", square(2, 11, 16, 16, 3, 1, 2), [](auto& d) { d.dilation = {2, 2, 1}; });
  add("dilated_rows_stride_2", square(1, 10, 3, 5, 3, 2, 1), [](auto& d) { d.dilation = {3, 1, 1}; });
  add("two_groups", square(2, 6, 16, 24, 3, 1, 1), [](auto& d) { d.groups = 2; });
  add("depthwise", square(2, 7, 16, 16, 3, 2, 1), [](auto& d) { d.groups = 16; });
  const auto circular = [](auto& d) { d.pad_mode = ops::PadMode::circular; };
  add("circular", square(2, 5, 3, 4, 3, 1, 1), circular);
  add("circular_twice_round", square(1, 3, 2, 2, 5, 2, 4), circular);  // the padding is wider than the image
  const auto of_axes = [](int rank) {
    return ops::ConvDesc{.spatial_rank = rank, .batch = 2, .in_channels = 5, .out_channels = 7};
  };
  add("one_axis", of_axes(1), [](auto& d) {
    d.in_size = {13, 1, 1}, d.kernel = {4, 1, 1}, d.stride = {3, 1, 1};
    d.pad_before = {1, 0, 0}, d.pad_after = {2, 0, 0};
  });
  add("three_axes", of_axes(3), [](auto& d) {
    d.in_size = {3, 5, 4}, d.kernel = {2, 3, 1}, d.stride = {1, 2, 1};
    d.pad_before = {1, 1, 0}, d.pad_after = {0, 1, 0};
  });
  add("three_axes_k3", square(1, 4, 16, 16, 3, 1, 1), [](auto& d) {
    d.spatial_rank = 3, d.in_size = {3, 4, 5}, d.kernel = {3, 3, 3};
    d.pad_before = d.pad_after = {1, 1, 1};
  });
  return cases;
}

/// Returns small convolutions for GPUs: one for each option of a ConvDesc, one with more than one tile of outputs, and
/// some with sums so long that the kernels split them.
inline std::vector<ConvCase> conv_cases_for_devices() {
  std::vector<ConvCase> cases;
  for (const ConvCase& item : conv_cases()) {
    for (const std::string_view wanted : {"pointwise_one_pixel", "pointwise_16_to_33", "k3_c3_to_16", "k3_c70_to_66",
                                          "asymmetric", "dilated_rows_stride_2", "two_groups", "depthwise", "circular",
                                          "circular_twice_round", "one_axis", "three_axes"}) {
      if (item.name == wanted) {
        cases.push_back(item);
      }
    }
  }
  // Each of these convolutions has a pass that sums 1100 or more terms.
  cases.push_back({"long_sum_of_pixels", {.spatial_rank = 1, .in_size = {1101, 1, 1}, .kernel = {2, 1, 1}}});
  cases.push_back({"long_sum_of_taps", square(1, 2, 280, 3, 2, 1, 0)});
  cases.push_back({"long_sum_of_output_channels", square(1, 2, 3, 280, 2, 1, 0)});
  return cases;
}

/// Returns the number of (convolution, pass) pairs of conv_cases_for_devices().
inline std::size_t conv2d_device_passes() {
  return conv_cases_for_devices().size() * std::size(kConvPasses);
}

/// Returns the test cases for a GPU of one pair (convolution, pass). index: index of the pair. There is one test case
/// for each type and each choice that choices(desc, pass) returns.
inline std::vector<DeviceCase> conv2d_device_cases(
    std::size_t index, const std::function<std::vector<std::string>(const ops::ConvDesc&, ops::ConvPass)>& choices) {
  std::vector<DeviceCase> items;
  const ConvCase item = conv_cases_for_devices().at(index / std::size(kConvPasses));
  const ops::ConvPass pass = kConvPasses[index % std::size(kConvPasses)];
  // `variant` adds a bias and accumulates gradients. It alternates with `index`. The number of passes is odd, so each
  // pass is tested with and without `variant`, for different convolutions.
  const bool variant = index % 2 == 0;
  ops::ConvDesc d = item.desc;
  d.bias = variant;
  d.grad_mode = variant ? ops::GradMode::accumulate : ops::GradMode::overwrite;
  const OpCase host = conv2d_case(item.name, d, pass, "reference");
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    d.dtype = dtype;
    for (const std::string& choice : choices(d, pass)) {
      DeviceCase made = device_case(conv2d_case(item.name, d, pass, choice), host);
      if (made.device.outputs.front().dtype == DType::f32 && !choice.starts_with("cudnn:split")) {
        made.tolerance = host.tolerance;  // f32 outputs are never rounded to 16 bits
      }
      items.push_back(std::move(made));
    }
  }
  return items;
}

/// Returns the test cases for a GPU of passes that also compute sums for a batch norm. They use lockstep's own kernels,
/// with one chunk of rows and several, and with more channels than a warp has lanes.
inline std::vector<DeviceCase> conv2d_norm_device_cases() {
  std::vector<DeviceCase> items;
  for (const ConvCase& item : {ConvCase{"k3_c5_to_6", square(3, 7, 5, 6, 3, 2, 1)},
                               ConvCase{"pointwise_c33_to_40", square(2, 9, 33, 40, 1, 1, 0)}}) {
    for (const ops::ConvNorm norm : {ops::ConvNorm{true}, ops::ConvNorm{true, true}, ops::ConvNorm{true, false, true},
                                     ops::ConvNorm{true, true, true}}) {
      for (const ops::ConvPass pass : {ops::ConvPass::forward, ops::ConvPass::backward_data}) {
        if (pass == ops::ConvPass::forward && (norm.addend || norm.pair)) {
          continue;
        }
        ops::ConvDesc d = item.desc;
        d.norm = norm;
        const OpCase host = conv2d_norm_case(item.name, d, pass, "reference:norm");
        for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
          d.dtype = dtype;
          items.push_back(device_case(conv2d_norm_case(item.name, d, pass, "cuda:norm"), host));
          items.back().tolerance += rounding_of(dtype);  // g is rounded twice: before and after the addend is added
        }
      }
    }
  }
  return items;
}

/// Returns all test cases for a GPU that use lockstep's own kernels.
inline std::vector<DeviceCase> conv2d_device_cases() {
  std::vector<DeviceCase> all = conv2d_norm_device_cases();
  for (std::size_t index = 0; index < conv2d_device_passes(); ++index) {
    for (DeviceCase& item : conv2d_device_cases(
             index, [](const ops::ConvDesc&, ops::ConvPass) { return std::vector<std::string>{"cuda"}; })) {
      all.push_back(std::move(item));
    }
  }
  return all;
}

}  // namespace lockstep::testing
