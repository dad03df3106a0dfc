#pragma once

#include <string>
#include <vector>

#include <lockstep/kernels/augment.hpp>

#include "tests/support/op_case.hpp"

namespace lockstep::testing {

struct AugmentParams {
  Shape out;  ///< shape of the output (N, H, W, 3 or 4)
  DType dtype = DType::f32;
  std::int64_t pad = 0;
  bool flip = false;
  std::int64_t valid = -1;  ///< number of valid samples; -1: not passed to the op
  bool alternate = false;
  bool reflect = false;
  std::int64_t epoch = 3;
};

inline ops::AugmentDesc augment_desc(const AugmentParams& p) {
  return {.pad = p.pad,
          .flip = p.flip,
          .alternate = p.alternate,
          .reflect = p.reflect,
          .mean = {0.49F, 0.48F, 0.45F},
          .std = {0.25F, 0.24F, 0.26F},
          .seed = 42};
}

/// Makes a test case of augment(). Inputs: images, sample ids, epoch, valid; output: out.
inline OpCase augment_case(const AugmentParams& p) {
  OpCase item;
  item.name =
      concat("augment ", p.dtype, ' ', p.out, " pad ", p.pad, p.flip ? " flip" : "",
             p.valid >= 0 ? concat(" valid ", p.valid) : std::string(),
             p.alternate ? concat(" alternate in epoch ", p.epoch) : std::string(), p.reflect ? " reflect" : "");
  item.dtype = p.dtype;
  item.inputs = {{"images", Shape{p.out[0], p.out[1], p.out[2], 3}, DType::u8, integers(1, 0, 255)},
                 {"sample_ids", Shape{p.out[0]}, DType::i64, integers(2, 0, 50000)},
                 {"epoch", Shape{}, DType::i64, constant(static_cast<double>(p.epoch))},
                 {"valid", Shape{}, DType::i64, constant(static_cast<double>(p.valid))}};
  item.outputs = {{"out", p.out, p.dtype, {}}};
  item.run = [=](Context& context, Views in, Views out, const TensorView&) {
    ops::augment(context, augment_desc(p), in[0], in[1], in[2], p.valid >= 0 ? in[3] : TensorView(), out[0]);
  };
  item.tolerance = p.dtype == DType::f64 ? 1e-14 : 1e-7;
  return item;
}

/// Returns parameters of test cases: images of one pixel, with odd and prime sizes, and of several tiles; padding wider
/// than the image; partial batches; three and four channels; flips that alternate, in an even and in an odd epoch;
/// padding by reflection, up to the largest pad that the op allows (the image's size less one pixel).
inline std::vector<AugmentParams> augment_params() {
  std::vector<AugmentParams> all;
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const std::int64_t channels : {3, 4}) {
      for (const auto& [pad, flip] : {std::pair<std::int64_t, bool>{0, false}, {0, true}, {4, false}, {4, true}}) {
        all.push_back({Shape{1, 1, 1, channels}, dtype, pad, flip, -1});
        all.push_back({Shape{0, 5, 5, channels}, dtype, pad, flip, -1});
        all.push_back({Shape{17, 3, 2, channels}, dtype, pad, flip, 16});
        all.push_back({Shape{13, 11, 7, channels}, dtype, pad, flip, 0});
        all.push_back({Shape{29, 32, 32, channels}, dtype, pad, flip, 40});
        all.push_back({Shape{3, 61, 83, channels}, dtype, pad, flip, -1});
      }
      for (const std::int64_t epoch : {0, 3}) {
        all.push_back({Shape{13, 2, 3, channels}, dtype, 1, true, -1, true, true, epoch});
        all.push_back({Shape{19, 5, 7, channels}, dtype, 4, true, 17, true, false, epoch});
      }
      all.push_back({Shape{1, 1, 1, channels}, dtype, 0, true, -1, true, true});
      all.push_back({Shape{0, 5, 5, channels}, dtype, 9, false, -1, false, true});
      all.push_back({Shape{11, 32, 32, channels}, dtype, 2, false, -1, false, true});
      all.push_back({Shape{5, 61, 83, channels}, dtype, 60, true, -1, false, true});
    }
  }
  return all;
}

/// Returns the test cases for a GPU. In f32 the GPU must give the same bits as the host.
inline std::vector<DeviceCase> augment_device_cases() {
  return device_cases(augment_params(), [](const AugmentParams& p) {
    OpCase item = augment_case(p);
    item.tolerance = 0;
    return item;
  });
}

}  // namespace lockstep::testing
