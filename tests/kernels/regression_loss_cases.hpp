#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <lockstep/kernels/regression_loss.hpp>

#include "tests/kernels/softmax_cross_entropy_cases.hpp"
#include "tests/support/op_case.hpp"

namespace lockstep::testing {

enum class PredictionGradient : unsigned char { none, apart, in_place };

struct RegressionLossParams {
  Shape shape;
  ops::RegressionLossOptions options;
  std::int64_t valid = -1;  ///< number of valid samples; -1: not passed to the op
  bool scaled = false;
  PredictionGradient gradient = PredictionGradient::apart;
  Weighting weighting = Weighting::none;
};

/// Makes a test case of regression_loss(). Inputs: target, valid, scale; prediction unless in place; weights from -1 to
/// 4 if there are weights. Outputs: metrics, which start at 2, 3, 5, and dprediction if wanted. The values are
/// multiples of 1/8, so that every type represents their differences exactly. Some differences are 0.
inline OpCase regression_loss_case(const RegressionLossParams& p, DType dtype) {
  const bool in_place = p.gradient == PredictionGradient::in_place;
  const char* kind = p.options.kind == ops::RegressionLoss::mse  ? " mse"
                     : p.options.kind == ops::RegressionLoss::l1 ? " l1"
                                                                 : " huber";
  OpCase item;
  item.name = concat("regression_loss ", dtype, ' ', p.shape, kind,
                     p.valid >= 0 ? concat(" valid ", p.valid) : std::string(), p.scaled ? " scaled" : "",
                     in_place ? " in place" : (p.gradient == PredictionGradient::none ? " loss only" : ""),
                     text_of(p.weighting));
  item.dtype = dtype;
  item.inputs = {{"target", p.shape, dtype, eighths(1)},
                 {"valid", Shape{}, DType::i64, constant(static_cast<double>(p.valid))},
                 {"scale", Shape{}, ops::accumulation_dtype(dtype), constant(0.375)}};
  item.outputs = {{"metrics", Shape{3}, DType::f64, values({2, 3, 5})}};
  if (in_place) {
    item.outputs.push_back({"prediction and dprediction", p.shape, dtype, eighths(2)});
  } else {
    item.inputs.push_back({"prediction", p.shape, dtype, eighths(2)});
    if (p.gradient == PredictionGradient::apart) {
      item.outputs.push_back({"dprediction", p.shape, dtype, {}});
    }
  }
  add_if(p.weighting != Weighting::none, item.inputs,
         {"weights", p.weighting == Weighting::sample ? Shape{p.shape[0]} : p.shape, ops::accumulation_dtype(dtype),
          integers(3, -1, 4)});
  item.run = [=](Context& context, Views in, Views out, const TensorView& workspace) {
    ops::regression_loss(context, p.options, in_place ? out[1] : in[3], in[0],
                         p.weighting != Weighting::none ? in.back() : TensorView(), p.valid >= 0 ? in[1] : TensorView(),
                         p.scaled ? in[2] : TensorView(), out.size() > 1 ? out[1] : TensorView(), out[0], workspace);
  };
  item.workspace_bytes = workspace_for(ops::regression_loss_workspace_bytes, dtype, p.shape);
  item.flops = 4.0 * static_cast<double>(p.shape.numel());
  item.tolerance = dtype == DType::f64 ? 1e-14 : 1e-6;
  return item;
}

/// Returns parameters of test cases: no element, one element, odd and prime sizes, multiples of a vector, more than a
/// chunk; every loss, number of valid samples, scale and kind of output.
inline std::vector<RegressionLossParams> regression_loss_params() {
  std::vector<RegressionLossParams> all;
  for (const ops::RegressionLossOptions& options :
       {ops::RegressionLossOptions{ops::RegressionLoss::mse}, ops::RegressionLossOptions{ops::RegressionLoss::l1},
        ops::RegressionLossOptions{ops::RegressionLoss::huber, 0.75}}) {
    for (const Shape& shape :
         {Shape{0, 5}, Shape{1}, Shape{3, 7}, Shape{5, 2, 8}, Shape{31, 3}, Shape{7, 4801}, Shape{16385}}) {
      const std::int64_t n = shape[0];
      all.push_back({shape, options});
      all.push_back({shape, options, n - n / 3, true, PredictionGradient::in_place});
      if (shape.numel() < 10000) {
        all.push_back({shape, options, n / 2, true, PredictionGradient::none});
        all.push_back({shape, options, n / 2, false});
      }
      all.push_back({shape, options, n - n / 3, true, PredictionGradient::in_place, Weighting::sample});
      all.push_back({shape, options, n - n / 3, true, PredictionGradient::apart, Weighting::element});
    }
    all.push_back({Shape{9, 5}, options, 0, true});
    all.push_back({Shape{9, 5}, options, 12, false});
  }
  return all;
}

inline std::vector<DeviceCase> regression_loss_device_cases() {
  return device_cases(regression_loss_params(), regression_loss_case);
}

}  // namespace lockstep::testing
