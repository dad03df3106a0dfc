#include <lockstep/nn/layers/conv/detail/conv_passes.hpp>

#include <cmath>
#include <utility>

#include <lockstep/nn/plan/plan_builder.hpp>

namespace lockstep::nn {

std::shared_ptr<const ops::ConvPlan> plan_conv_pass(PlanBuilder& builder, const std::string& key,
                                                    const ops::ConvDesc& desc, ops::ConvPass pass) {
  const bool for_norm = builder.options().norms_in_convolutions && ops::conv_may_serve_norm(desc, pass);
  // Evaluation and inference plan the same pass without a norm, for which another choice holds.
  return builder.planned(desc.norm.wanted ? key + " beside a norm" : key, [&](const std::string& choice) {
    return ops::plan_conv2d(builder.context(), desc, pass, for_norm ? "reference:norm" : choice);
  });
}

std::vector<ParameterSpec> conv_parameters(const std::string& name, std::int64_t first, std::int64_t second,
                                           std::int64_t stored_second, int axes, const AxisSizes& kernel,
                                           std::int64_t channels, bool bias) {
  Shape shape{first, second};
  std::vector<int> order{0};
  double fan_out = static_cast<double>(channels);
  for (int i = 0; i < axes; ++i) {
    shape.push_back(kernel[i]);
    order.push_back(2 + i);
    fan_out *= static_cast<double>(kernel[i]);
  }
  order.push_back(1);
  std::vector<ParameterSpec> specs;
  specs.push_back({.name = name + ".weight",
                   .shape = shape,
                   .dims = shape,
                   .axes = std::move(order),
                   .stored_last = stored_second,
                   .role = ParameterRole::weight,
                   .init = {Initialiser::Kind::normal, std::sqrt(2.0 / fan_out)}});
  if (bias) {
    specs.push_back({.name = name + ".bias",
                     .shape = {channels},
                     .dims = {channels},
                     .axes = {0},
                     .stored_last = channels,
                     .role = ParameterRole::bias,
                     .init = {}});
  }
  return specs;
}

}  // namespace lockstep::nn
