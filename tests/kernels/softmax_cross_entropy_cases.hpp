#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <lockstep/kernels/softmax_cross_entropy.hpp>

#include "tests/support/op_case.hpp"

namespace lockstep::testing {

enum class LogitsGradient : unsigned char { none, apart, in_place };

/// The weights of a loss: none, one for each sample, or one for each element.
enum class Weighting : unsigned char { none, sample, element };

/// Returns the weights' text in the name of a test case.
inline const char* text_of(Weighting weighting) {
  return weighting == Weighting::none ? "" : weighting == Weighting::sample ? " a weight a sample" : " all weights";
}

struct SoftmaxCrossEntropyParams {
  std::int64_t samples = 1;
  std::int64_t classes = 1;
  DType dtype = DType::f32;
  double smoothing = 0;
  std::int64_t valid = -1;  ///< number of valid samples; -1: not passed to the op
  bool scaled = false;
  LogitsGradient gradient = LogitsGradient::apart;
  std::int64_t positions = 0;  ///< number of positions of each sample; 0: logits have shape (N, K)
  Weighting weighting = Weighting::none;
};

/// Generates multiples of 1/8, which every type represents exactly. Most rows contain equal numbers.
inline Generator eighths(std::uint64_t seed) {
  return mapped(integers(seed, -40, 40), [](double value) { return value / 8; });
}

/// Makes a test case of softmax_cross_entropy(). Inputs: labels, valid, scale; logits unless in place; weights from -1
/// to 4 if there are weights. Outputs: metrics, which start at 2, 3, 5, and dlogits if wanted. The labels go from -1 to
/// K, so some are out of range.
inline OpCase softmax_cross_entropy_case(const SoftmaxCrossEntropyParams& p) {
  const bool in_place = p.gradient == LogitsGradient::in_place;
  const Shape shape = p.positions == 0 ? Shape{p.samples, p.classes} : Shape{p.samples, p.positions, p.classes};
  const Shape label_shape = p.positions == 0 ? Shape{p.samples} : Shape{p.samples, p.positions};
  OpCase item;
  item.name =
      concat("softmax_cross_entropy ", p.dtype, ' ', shape, p.smoothing > 0 ? " smooth" : "",
             p.valid >= 0 ? concat(" valid ", p.valid) : std::string(), p.scaled ? " scaled" : "",
             in_place ? " in place" : (p.gradient == LogitsGradient::none ? " loss only" : ""), text_of(p.weighting));
  item.dtype = p.dtype;
  item.inputs = {{"labels", label_shape, DType::i32, integers(1, -1, p.classes)},
                 {"valid", Shape{}, DType::i64, constant(static_cast<double>(p.valid))},
                 {"scale", Shape{}, ops::accumulation_dtype(p.dtype), constant(0.375)}};
  item.outputs = {{"metrics", Shape{3}, DType::f64, values({2, 3, 5})}};
  if (in_place) {
    item.outputs.push_back({"logits and dlogits", shape, p.dtype, eighths(2)});
  } else {
    item.inputs.push_back({"logits", shape, p.dtype, normal(2, 2)});
    if (p.gradient == LogitsGradient::apart) {
      item.outputs.push_back({"dlogits", shape, p.dtype, {}});
    }
  }
  add_if(p.weighting != Weighting::none, item.inputs,
         {"weights", p.weighting == Weighting::sample ? Shape{p.samples} : label_shape,
          ops::accumulation_dtype(p.dtype), integers(3, -1, 4)});
  item.run = [=](Context& context, Views in, Views out, const TensorView& workspace) {
    ops::softmax_cross_entropy(context, in_place ? out[1] : in[3], in[0],
                               p.weighting != Weighting::none ? in.back() : TensorView(),
                               p.valid >= 0 ? in[1] : TensorView(), p.scaled ? in[2] : TensorView(), p.smoothing,
                               out.size() > 1 ? out[1] : TensorView(), out[0], workspace);
  };
  item.workspace_bytes = workspace_for(ops::softmax_cross_entropy_workspace_bytes, p.dtype, shape);
  item.flops = 6.0 * static_cast<double>(p.samples * p.classes);
  item.tolerance = p.dtype == DType::f64 ? 1e-13 : 1e-6;  // f64: thousands of terms are added in another order
  return item;
}

/// Returns parameters of test cases: one sample, one class, odd and prime sizes, multiples of a vector, more samples
/// than a block processes, several positions for each sample; every number of valid samples, scale and kind of output.
inline std::vector<SoftmaxCrossEntropyParams> softmax_cross_entropy_params() {
  std::vector<SoftmaxCrossEntropyParams> all;
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const auto& [n, k] : {std::pair<std::int64_t, std::int64_t>{1, 1},
                               {1, 10},
                               {3, 7},
                               {13, 2},
                               {31, 101},
                               {523, 17},
                               {11, 64},
                               {5, 1000},
                               {9, 4099},
                               {0, 5}}) {
      all.push_back({n, k, dtype});
      all.push_back({n, k, dtype, 0.1, -1, true});
      all.push_back({n, k, dtype, 0, n / 2, true});
      all.push_back({n, k, dtype, 0.25, 0, false});
      all.push_back({n, k, dtype, 0, n + 3, false});
      all.push_back({n, k, dtype, 0.1, n - n / 3, true, LogitsGradient::in_place});
      all.push_back({n, k, dtype, 0.1, n / 2 + 1, true, LogitsGradient::none});
    }
    all.push_back({5, 9, dtype, 0.1, 3, true, LogitsGradient::apart, 7});
    all.push_back({3, 16, dtype, 0, -1, false, LogitsGradient::in_place, 1});
    all.push_back({40, 8, dtype, 0, 41, true, LogitsGradient::in_place, 13});
    for (const Weighting weighting : {Weighting::sample, Weighting::element}) {
      all.push_back({31, 10, dtype, 0, -1, false, LogitsGradient::apart, 0, weighting});
      all.push_back({523, 3, dtype, 0.1, 500, true, LogitsGradient::in_place, 0, weighting});
      all.push_back({9, 17, dtype, 0.1, 7, true, LogitsGradient::apart, 7, weighting});
      all.push_back({40, 8, dtype, 0, 39, true, LogitsGradient::in_place, 13, weighting});
      all.push_back({11, 4, dtype, 0, -1, false, LogitsGradient::none, 5, weighting});
      all.push_back({0, 5, dtype, 0, -1, false, LogitsGradient::apart, 3, weighting});
    }
  }
  return all;
}

inline std::vector<DeviceCase> softmax_cross_entropy_device_cases() {
  return device_cases(softmax_cross_entropy_params(), softmax_cross_entropy_case);
}

}  // namespace lockstep::testing
