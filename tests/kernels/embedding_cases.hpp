#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <lockstep/kernels/embedding.hpp>

#include "tests/support/op_case.hpp"

namespace lockstep::testing {

struct EmbeddingParams {
  std::int64_t vocabulary = 1;
  std::int64_t width = 1;
  Shape ids;
  bool positions = false;   ///< forward: adds positions and counts ids out of range
  std::int64_t valid = -1;  ///< forward: number of sequences whose bad ids are counted; -1: not passed to the op
};

/// Returns ids from -1 to V. Ids -1 and V are out of range.
inline TensorSpec embedding_ids(const EmbeddingParams& p) {
  return {"ids", p.ids, DType::i32, integers(3, -1, p.vocabulary)};
}

inline Shape embedding_rows(const EmbeddingParams& p) {
  Shape shape = p.ids;
  shape.push_back(p.width);
  return shape;
}

/// Makes a test case of embedding_forward(). Inputs: table, ids; outputs: y. With p.positions there are also the inputs
/// positions and valid, and the output bad_ids, a counter that starts at 2.
inline OpCase embedding_forward_case(const EmbeddingParams& p, DType dtype) {
  OpCase item;
  item.name = concat("embedding_forward ", dtype, ' ', p.ids, " of ", Shape{p.vocabulary, p.width},
                     p.positions ? " with positions" : "", p.valid >= 0 ? concat(" valid ", p.valid) : std::string());
  item.dtype = dtype;
  item.inputs = {{"table", Shape{p.vocabulary, p.width}, dtype, normal(1)}, embedding_ids(p)};
  item.outputs = {{"y", embedding_rows(p), dtype, {}}};
  if (p.positions) {
    item.inputs.push_back({"positions", Shape{p.ids.back(), p.width}, dtype, normal(2)});
    item.inputs.push_back({"valid", Shape{}, DType::i64, constant(static_cast<double>(p.valid))});
    item.outputs.push_back({"bad_ids", Shape{}, DType::f64, constant(2)});
  }
  item.run = [=](Context& context, Views in, Views out, const TensorView&) {
    ops::embedding_forward(context, in[0], in[1], p.positions ? in[2] : TensorView(),
                           p.valid >= 0 ? in[3] : TensorView(), out[0], p.positions ? out[1] : TensorView());
  };
  // Each token reads its id and writes one row of y. The rows of the table are read from memory at most once each.
  const double row = static_cast<double>(p.width) * static_cast<double>(size_of(dtype));
  const auto tokens = static_cast<double>(p.ids.numel());
  item.bytes = tokens * (4 + row) + row * std::min(tokens, static_cast<double>(p.vocabulary));
  return item;  // tolerance 0: the op and the reference round each value once
}

/// Makes a test case of embedding_backward(). Inputs: dy, ids; output: dtable.
inline OpCase embedding_backward_case(const EmbeddingParams& p, DType dtype, ops::GradMode mode) {
  const bool accumulate = mode == ops::GradMode::accumulate;
  const Shape table{p.vocabulary, p.width};
  OpCase item;
  item.name =
      concat("embedding_backward ", dtype, ' ', p.ids, " of ", table, accumulate ? " accumulate" : " overwrite");
  item.dtype = dtype;
  item.inputs = {{"dy", embedding_rows(p), dtype, normal(1)}, embedding_ids(p)};
  item.outputs = {{"dtable", table, ops::accumulation_dtype(dtype), accumulate ? normal(2) : Generator{}}};
  item.run = [=](Context& context, Views in, Views out, const TensorView& workspace) {
    ops::embedding_backward(context, in[0], in[1], mode, out[0], workspace);
  };
  item.workspace_bytes = workspace_for(ops::embedding_backward_workspace_bytes, ops::accumulation_dtype(dtype), table);
  item.flops = static_cast<double>(p.ids.numel() * p.width);
  item.tolerance = dtype == DType::f64 ? 1e-14 : 1e-6;
  return item;
}

/// Returns parameters of test cases: no tokens, an empty table, rows of width 0, one token, odd and prime sizes, widths
/// that are multiples of 16 bytes, rows longer than a warp or a block processes at once; many tokens with few ids, few
/// tokens with many ids; none, some or all sequences valid.
inline std::vector<EmbeddingParams> embedding_params() {
  return {{5, 3, Shape{0}},
          {0, 4, Shape{3}},
          {5, 0, Shape{2, 2}},
          {1, 1, Shape{1}},
          {7, 3, Shape{13}},
          {31, 8, Shape{2, 33}},
          {3, 16, Shape{5, 211}, true},
          {2, 1, Shape{1100}},
          {97, 24, Shape{4, 7, 3}, true, 3},
          {5, 3, Shape{0, 2}, true, 1},
          {7, 4, Shape{9, 331}, true, 8},
          {5, 7, Shape{3, 5}, true, 0},
          {11, 1029, Shape{3}},
          {4, 2056, Shape{2, 3}, true},
          {1009, 5, Shape{2, 31}, true, 3}};
}

inline std::vector<DeviceCase> embedding_device_cases() {
  std::vector<DeviceCase> items;
  for (const EmbeddingParams& p : embedding_params()) {
    append(items, device_cases([&](DType dtype) { return embedding_forward_case(p, dtype); }));
    for (const ops::GradMode mode : {ops::GradMode::overwrite, ops::GradMode::accumulate}) {
      const OpCase host = embedding_backward_case(p, DType::f32, mode);
      // dtable is f32 for every input type, so no rounding is added to the tolerance.
      for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
        items.push_back({embedding_backward_case(p, dtype, mode), host, host.tolerance});
      }
    }
  }
  return items;
}

}  // namespace lockstep::testing
