#pragma once

#include <vector>

#include <lockstep/kernels/loss_scale.hpp>

#include "tests/support/op_case.hpp"

namespace lockstep::testing {

struct LossScaleParams {
  DType dtype = DType::f32;
  ops::Skip skip = ops::Skip::no;
  double scale = 65536;
  std::int64_t good = 0;
  ops::LossScaleOptions options{};
};

/// Makes a test case of loss_scale_update(). Input: skip; outputs: scale and the counter good.
inline OpCase loss_scale_case(const LossScaleParams& p) {
  OpCase item;
  item.name = concat("loss_scale_update ", p.dtype,
                     p.skip == ops::Skip::no           ? ""
                     : p.skip == ops::Skip::not_finite ? " not finite"
                                                       : " no weight",
                     " scale ", p.scale, " good ", p.good, " of ", p.options.interval, " growth ", p.options.growth);
  item.dtype = p.dtype;
  item.inputs = {{"skip", Shape{}, DType::i32, constant(static_cast<double>(p.skip))}};
  item.outputs = {{"scale", Shape{}, p.dtype, constant(p.scale)},
                  {"good", Shape{}, DType::i64, constant(static_cast<double>(p.good))}};
  item.run = [=](Context& context, Views in, Views out, const TensorView&) {
    ops::loss_scale_update(context, p.options, in[0], out[0], out[1]);
  };
  return item;  // tolerance 0: all backends give the same bits
}

/// Returns parameters of test cases: counters below, at and beyond the growth interval; scales at and between their
/// bounds; growth factors that are not powers of two.
inline std::vector<LossScaleParams> loss_scale_params() {
  std::vector<LossScaleParams> all;
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const ops::Skip skip : {ops::Skip::no, ops::Skip::not_finite, ops::Skip::no_weight}) {
      for (const ops::LossScaleOptions& options :
           {ops::LossScaleOptions{},
            ops::LossScaleOptions{.growth = 1.7, .backoff = 0.3, .interval = 3, .least = 0.7}}) {
        for (const double scale : {0.875, 1.0, 1.5, 65536.0, 12e6, 16777216.0}) {
          for (const std::int64_t good : {0, 1, 2, 1998, 1999, 2000}) {
            all.push_back({dtype, skip, scale, good, options});
          }
        }
      }
    }
  }
  return all;
}

inline std::vector<DeviceCase> loss_scale_device_cases() {
  return same_cases(loss_scale_params(), loss_scale_case);
}

}  // namespace lockstep::testing
