#include <lockstep/c/layers.hpp>
#include <lockstep/nn/layers/model_builder.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <lockstep/c/arguments.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::c {
namespace {

/// A kind of layer: its name, the inputs and options that it takes, and the function that adds such a layer.
struct Kind {
  std::string_view name;
  std::size_t least_inputs;
  std::size_t most_inputs;
  bool sized;
  bool convolves;  ///< true: the layer takes the options `groups` and `dilation`
  nn::NodeId (*add)(nn::ModelBuilder&, const LayerRequest&);
};

void require_option(bool supported, const LayerRequest& request, std::string_view option, double value,
                    std::string_view expected) {
  require<UnsupportedError>(supported, "options of layer ", request.name, " (", request.kind, "): ", option, " is ",
                            value, ", expected ", expected);
}

/// Returns the option `option` as one number for each axis. values[0] is the number of the first axis; 0 means the
/// default `otherwise`. In values[1] and values[2], 0 means the number of the first axis, and -1 means 0 if may_be_none
/// is true. Throws UsageError for other numbers below 0.
nn::AxisSizes sizes(const LayerRequest& request, int axes, const std::int32_t (&values)[3], const char* option,
                    const nn::AxisSizes& otherwise, bool may_be_none = false) {
  std::array<std::int64_t, 3> each{};
  for (std::size_t i = 0; i < each.size(); ++i) {
    const std::int32_t value = values[i];
    const bool none = may_be_none && i > 0 && value == -1;
    require<UsageError>(value >= 0 || none, "options of layer ", request.name, ": ", option, "[", i, "] is ", value,
                        ", expected at least 0", may_be_none && i > 0 ? ", or -1 for none" : "");
    const auto axis = static_cast<int>(i);
    require<UsageError>(axis < axes || value == 0 || value == values[0], "options of layer ", request.name, ": ",
                        option, "[", i, "] is ", value, ", expected 0, or ", values[0], " as ", option,
                        "[0]: ", request.kind, " has ", axes, axes == 1 ? " axis" : " axes");
    const std::int64_t first = values[0] == 0 ? otherwise[axis] : values[0];
    each[i] = none ? 0 : value == 0 ? first : value;
  }
  return axes == 1   ? nn::AxisSizes(each[0])
         : axes == 2 ? nn::AxisSizes{each[0], each[1]}
                     : nn::AxisSizes{each[0], each[1], each[2]};
}

nn::AxisSizes pads(const LayerRequest& request, int axes) {
  return sizes(request, axes, request.options.pad, "pad", 0, true);
}

std::int64_t groups_of(const LayerRequest& request) {
  require<UsageError>(request.options.groups >= 0, "options of layer ", request.name, ": groups is ",
                      request.options.groups, ", expected at least 0");
  return request.options.groups == 0 ? 1 : request.options.groups;
}

nn::NodeId residual_of(const LayerRequest& request) {
  return request.inputs.size() > 1 ? request.inputs[1] : nn::NodeId{};
}

bool with_bias(const LayerRequest& request, bool otherwise) {
  const std::int32_t bias = request.options.bias;
  require<UsageError>(bias >= LOCKSTEP_BIAS_DEFAULT && bias <= LOCKSTEP_BIAS_WITHOUT, "options of layer ", request.name,
                      ": bias is ", bias, ", expected 0 (the layer's default), 1 (with) or 2 (without)");
  return bias == LOCKSTEP_BIAS_DEFAULT ? otherwise : bias == LOCKSTEP_BIAS_WITH;
}

double positive(const LayerRequest& request, double value, const char* option, double otherwise) {
  require<UsageError>(value >= 0, "options of layer ", request.name, ": ", option, " is ", value,
                      ", expected more than 0, or 0 for ", otherwise);
  return value == 0 ? otherwise : value;
}

nn::NodeId add_linear(nn::ModelBuilder& b, const LayerRequest& r) {
  return b.linear(
      r.name, r.inputs[0], r.size,
      {.bias = with_bias(r, true), .activation = activation_from(r.options.activation), .residual = residual_of(r)});
}

void require_no_activation(const LayerRequest& r) {
  require_option(r.options.activation == LOCKSTEP_ACTIVATION_NONE, r, "activation", r.options.activation,
                 "0, and a layer 'activation' after it");
}

template <auto Add, int kAxes>
nn::NodeId add_conv(nn::ModelBuilder& b, const LayerRequest& r) {
  require_no_activation(r);
  return (b.*Add)(r.name, r.inputs[0], r.size,
                  {.kernel = sizes(r, kAxes, r.options.kernel, "kernel", 3),
                   .stride = sizes(r, kAxes, r.options.stride, "stride", 1),
                   .pad = pads(r, kAxes),
                   .bias = with_bias(r, false),
                   .groups = groups_of(r),
                   .dilation = sizes(r, kAxes, r.options.dilation, "dilation", 1)});
}

template <auto Add, int kAxes>
nn::NodeId add_conv_transpose(nn::ModelBuilder& b, const LayerRequest& r) {
  require_no_activation(r);
  const nn::AxisSizes kernel = sizes(r, kAxes, r.options.kernel, "kernel", 2);
  return (b.*Add)(r.name, r.inputs[0], r.size,
                  {.kernel = kernel,
                   .stride = sizes(r, kAxes, r.options.stride, "stride", kernel),
                   .pad = pads(r, kAxes),
                   .output_pad = sizes(r, kAxes, r.options.output_pad, "output_pad", 0, true),
                   .bias = with_bias(r, false),
                   .groups = groups_of(r),
                   .dilation = sizes(r, kAxes, r.options.dilation, "dilation", 1)});
}

nn::NodeId add_batch_norm(nn::ModelBuilder& b, const LayerRequest& r) {
  const ops::Activation activation = activation_from(r.options.activation);
  require_option(activation == ops::Activation::identity || activation == ops::Activation::relu, r, "activation",
                 r.options.activation, "0 or 1 (relu)");
  return b.batch_norm(r.name, r.inputs[0],
                      {.relu = activation == ops::Activation::relu,
                       .residual = residual_of(r),
                       .epsilon = positive(r, r.options.epsilon, "epsilon", 1e-5),
                       .momentum = positive(r, r.options.momentum, "momentum", 0.1)});
}

nn::NodeId add_layer_norm(nn::ModelBuilder& b, const LayerRequest& r) {
  return b.layer_norm(r.name, r.inputs[0], positive(r, r.options.epsilon, "epsilon", 1e-5));
}

nn::NodeId add_activation(nn::ModelBuilder& b, const LayerRequest& r) {
  return b.activation(r.name, r.inputs[0], activation_from(r.options.activation));
}

template <auto Add, int kAxes>
nn::NodeId add_max_pool(nn::ModelBuilder& b, const LayerRequest& r) {
  const nn::AxisSizes kernel = sizes(r, kAxes, r.options.kernel, "kernel", 2);
  return (b.*Add)(r.name, r.inputs[0], kernel, sizes(r, kAxes, r.options.stride, "stride", kernel), pads(r, kAxes));
}

template <auto Add, int kAxes>
nn::NodeId add_average_pool(nn::ModelBuilder& b, const LayerRequest& r) {
  const nn::AxisSizes kernel = sizes(r, kAxes, r.options.kernel, "kernel", 2);
  return (b.*Add)(r.name, r.inputs[0], kernel, sizes(r, kAxes, r.options.stride, "stride", kernel), pads(r, kAxes),
                  ops::AverageOver::window);
}

nn::NodeId add_global_average_pool(nn::ModelBuilder& b, const LayerRequest& r) {
  return b.global_average_pool(r.name, r.inputs[0]);
}

nn::NodeId add_sum(nn::ModelBuilder& b, const LayerRequest& r) {
  return b.add(r.name, r.inputs[0], r.inputs[1]);
}

nn::NodeId add_dropout(nn::ModelBuilder& b, const LayerRequest& r) {
  return b.dropout(r.name, r.inputs[0], r.options.rate);
}

constexpr std::array kKinds{
    Kind{"linear", 1, 2, true, false, add_linear},
    Kind{"conv1d", 1, 1, true, true, add_conv<&nn::ModelBuilder::conv1d, 1>},
    Kind{"conv2d", 1, 1, true, true, add_conv<&nn::ModelBuilder::conv2d, 2>},
    Kind{"conv3d", 1, 1, true, true, add_conv<&nn::ModelBuilder::conv3d, 3>},
    Kind{"conv_transpose1d", 1, 1, true, true, add_conv_transpose<&nn::ModelBuilder::conv_transpose1d, 1>},
    Kind{"conv_transpose2d", 1, 1, true, true, add_conv_transpose<&nn::ModelBuilder::conv_transpose2d, 2>},
    Kind{"conv_transpose3d", 1, 1, true, true, add_conv_transpose<&nn::ModelBuilder::conv_transpose3d, 3>},
    Kind{"batch_norm", 1, 2, false, false, add_batch_norm},
    Kind{"layer_norm", 1, 1, false, false, add_layer_norm},
    Kind{"activation", 1, 1, false, false, add_activation},
    Kind{"max_pool", 1, 1, false, false, add_max_pool<&nn::ModelBuilder::max_pool, 2>},
    Kind{"max_pool1d", 1, 1, false, false, add_max_pool<&nn::ModelBuilder::max_pool1d, 1>},
    Kind{"max_pool3d", 1, 1, false, false, add_max_pool<&nn::ModelBuilder::max_pool3d, 3>},
    Kind{"average_pool", 1, 1, false, false, add_average_pool<&nn::ModelBuilder::average_pool, 2>},
    Kind{"average_pool1d", 1, 1, false, false, add_average_pool<&nn::ModelBuilder::average_pool1d, 1>},
    Kind{"average_pool3d", 1, 1, false, false, add_average_pool<&nn::ModelBuilder::average_pool3d, 3>},
    Kind{"global_average_pool", 1, 1, false, false, add_global_average_pool},
    Kind{"add", 2, 2, false, false, add_sum},
    Kind{"dropout", 1, 1, false, false, add_dropout},
};

std::string known_kinds() {
  std::string names;
  for (const Kind& kind : kKinds) {
    names += names.empty() ? "" : ", ";
    names += kind.name;
  }
  return names;
}

}  // namespace

ops::Activation activation_from(std::int32_t number) {
  using enum ops::Activation;
  return value_of(number, {identity, relu, tanh, sigmoid, gelu, gelu_tanh, silu}, "activation",
                  "LOCKSTEP_ACTIVATION_NONE", "_SILU");
}

nn::NodeId add_layer(nn::ModelBuilder& builder, const LayerRequest& request) {
  for (const Kind& kind : kKinds) {
    if (kind.name != request.kind) {
      continue;
    }
    require<UsageError>(request.inputs.size() >= kind.least_inputs && request.inputs.size() <= kind.most_inputs,
                        "layer ", request.name, " (", request.kind, ") has ", request.inputs.size(),
                        " inputs, expected ", kind.least_inputs, " to ", kind.most_inputs);
    require<UsageError>(kind.sized ? request.size > 0 : request.size == 0, "layer ", request.name, " (", request.kind,
                        "): size is ", request.size, ", expected ", kind.sized ? "at least 1" : "0");
    require_option(request.options.pad_mode == 0, request, "pad_mode", request.options.pad_mode, "0 (zeros)");
    if (!kind.convolves) {
      require_option(request.options.groups == 0 || request.options.groups == 1, request, "groups",
                     request.options.groups, "0 or 1");
      for (const std::int32_t dilation : request.options.dilation) {
        require_option(dilation == 0 || dilation == 1, request, "dilation", dilation, "0 or 1");
      }
    }
    if (kind.name.substr(0, 14) != "conv_transpose") {
      for (const std::int32_t output_pad : request.options.output_pad) {
        require_option(output_pad == 0, request, "output_pad", output_pad, "0");
      }
    }
    return kind.add(builder, request);
  }
  throw UnsupportedError(concat("kind is '", request.kind, "', expected one of ", known_kinds()));
}

}  // namespace lockstep::c
