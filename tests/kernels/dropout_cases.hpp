#pragma once

#include <vector>

#include <lockstep/kernels/dropout.hpp>

#include "tests/support/op_case.hpp"

namespace lockstep::testing {

inline ops::DropoutDesc dropout_desc(double rate = 0.3) {
  return {.rate = rate, .seed = 0x123456789ABCDEF0, .layer = 7};
}

/// Makes a test case of dropout(). Inputs: sample ids, epoch, x; output: y. The in-place variant has no x, and y starts
/// with the values of x. x holds small integers, which every type represents exactly.
inline OpCase dropout_case(const Shape& shape, DType dtype, const ops::DropoutDesc& desc = dropout_desc(),
                           bool in_place = false) {
  OpCase item;
  item.name = concat("dropout ", dtype, ' ', shape, " rate ", desc.rate, in_place ? " in place" : "");
  item.dtype = dtype;
  item.inputs = {{"sample_ids", Shape{shape[0]}, DType::i64, integers(2, 0, 50000)},
                 {"epoch", Shape{}, DType::i64, constant(3)}};
  add_if(!in_place, item.inputs, {"x", shape, dtype, integers(1, 1, 99)});
  item.outputs = {{"y", shape, dtype, in_place ? integers(1, 1, 99) : Generator()}};
  item.run = [=](Context& context, Views in, Views out, const TensorView&) {
    ops::dropout(context, desc, in[0], in[1], in_place ? out[0] : in[2], out[0]);
  };
  item.bytes = 2 * static_cast<double>(shape.numel()) * static_cast<double>(size_of(dtype));
  return item;  // tolerance 0: all backends give the same bits
}

/// Returns shapes: no sample, no element, one element; samples that end within a block of random words; samples of one
/// element; more samples than a grid has threads; samples with more elements than a grid has threads.
inline std::vector<Shape> dropout_shapes() {
  return {Shape{0, 5},    Shape{3, 0},   Shape{1},        Shape{37},      Shape{5, 7},
          Shape{3, 2, 8}, Shape{97, 33}, Shape{2, 13001}, Shape{2100, 8}, Shape{3, 6000}};
}

inline std::vector<OpCase> dropout_cases() {
  std::vector<OpCase> items;
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const Shape& shape : dropout_shapes()) {
      for (const bool in_place : {false, true}) {
        items.push_back(dropout_case(shape, dtype, dropout_desc(), in_place));
      }
    }
    for (const double rate : {0.0, 0.5, 0.999}) {
      items.push_back(dropout_case({11, 101}, dtype, dropout_desc(rate)));
    }
  }
  return items;
}

/// Returns the test cases for a GPU. In f32 the GPU must give the same bits as the host.
inline std::vector<DeviceCase> dropout_device_cases() {
  std::vector<DeviceCase> items =
      device_cases(dropout_shapes(), [](const Shape& shape, DType dtype) { return dropout_case(shape, dtype); });
  append(items, device_cases([&](DType dtype) { return dropout_case({11, 101}, dtype, dropout_desc(), true); }));
  for (const double rate : {0.0, 0.5}) {
    append(items, device_cases([&](DType dtype) { return dropout_case({11, 104}, dtype, dropout_desc(rate), true); }));
  }
  return items;
}

}  // namespace lockstep::testing
