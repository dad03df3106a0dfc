#pragma once

#include <cmath>
#include <vector>

#include <lockstep/kernels/clip.hpp>

#include "tests/support/op_case.hpp"

namespace lockstep::testing {

struct ClipParams {
  DType dtype = DType::f32;
  double max_norm = 0;
  double squared_norm = 0;
  double loss_scale = 1;
  bool all = true;  ///< false: optional tensors are not passed to the op
  double divisor = 1;
  int squares = 1;  ///< number of elements of the squared_norm tensor, which the op adds up; a power of two
};

/// Makes a test case of clip_factor(). Inputs: squared_norm, loss_scale, divisor; outputs: factor, skip, step, norm,
/// skipped.
inline OpCase clip_case(const ClipParams& p) {
  OpCase item;
  item.name =
      concat("clip_factor ", p.dtype, " max ", p.max_norm, " squared ", p.squared_norm, " loss scale ", p.loss_scale,
             " divisor ", p.divisor, p.all ? "" : " alone", p.squares > 1 ? concat(" of ", p.squares) : "");
  item.dtype = p.dtype;
  item.inputs = {
      {"squared_norm", p.squares > 1 ? Shape{p.squares} : Shape{}, DType::f64, constant(p.squared_norm / p.squares)},
      {"loss_scale", Shape{}, p.dtype, constant(p.loss_scale)},
      {"divisor", Shape{}, p.dtype, constant(p.divisor)}};
  item.outputs = {{"factor", Shape{}, p.dtype, {}},
                  {"skip", Shape{}, DType::i32, {}},
                  {"step", Shape{}, DType::i64, constant(41)},
                  {"norm", Shape{}, DType::f64, constant(-1)},
                  {"skipped", Shape{}, DType::i64, constant(7)}};
  item.run = [=](Context& context, Views in, Views out, const TensorView&) {
    ops::ClipScalars scalars{.squared_norm = in[0], .factor = out[0], .skip = out[1]};
    if (p.all) {
      scalars.loss_scale = in[1];
      scalars.divisor = in[2];
      scalars.step = out[2];
      scalars.norm = out[3];
      scalars.skipped = out[4];
    } else if (p.max_norm == 0) {
      scalars.squared_norm = {};
    }
    ops::clip_factor(context, p.max_norm, scalars);
  };
  item.tolerance = p.dtype == DType::f32 ? 1e-7 : 1e-15;
  return item;
}

inline std::vector<ClipParams> clip_params() {
  std::vector<ClipParams> all;
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const double max_norm : {0.0, 1e-3, 1.0, 1e30}) {
      for (const double squared : {0.0, 1e-300, 0.9, 4.0, 1e76}) {
        all.push_back({dtype, max_norm, squared, 1});
        all.push_back({dtype, max_norm, squared, 1024});
        all.push_back({dtype, max_norm, squared, 4, true, 0.375});
        all.push_back({dtype, max_norm, squared, 4, true, -0.375});
        all.push_back({dtype, max_norm, squared, 1, false});
        all.push_back({dtype, max_norm, squared, 2, true, 1, 8});
      }
    }
  }
  return all;
}

/// Returns parameters of test cases whose divisor makes the op skip the update. The norm is finite in some of them and
/// not in others.
inline std::vector<ClipParams> clip_params_without_weight() {
  std::vector<ClipParams> all;
  for (const double squared : {0.0, 4.0, HUGE_VAL, std::nan("")}) {
    for (const double divisor : {0.0, -0.0, -0.5, HUGE_VAL, -HUGE_VAL, std::nan("")}) {
      all.push_back({DType::f32, 1, squared, 2, true, divisor});
    }
  }
  return all;
}

/// Returns parameters of test cases whose norm is infinite or NaN, so the op skips the update. They are separate
/// because their NaN outputs cannot be compared with a tolerance.
inline std::vector<ClipParams> clip_params_that_skip() {
  std::vector<ClipParams> all;
  for (const double squared : {HUGE_VAL, std::nan("")}) {
    for (const double max_norm : {0.0, 1.0}) {
      all.push_back({DType::f32, max_norm, squared, 2});
    }
  }
  return all;
}

inline std::vector<DeviceCase> clip_device_cases() {
  return same_cases(clip_params(), clip_case);
}

}  // namespace lockstep::testing
