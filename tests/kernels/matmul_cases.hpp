#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <lockstep/kernels/matmul.hpp>

#include "tests/kernels/activation_cases.hpp"
#include "tests/support/op_case.hpp"

namespace lockstep::testing {

/// Makes a test case of one product with one choice. Inputs: a, b, and bias if d.bias; output: c.
inline OpCase matmul_case(const ops::MatmulDesc& d, const std::string& choice) {
  const bool accumulate = d.grad_mode == ops::GradMode::accumulate;
  OpCase item;
  item.name = concat("matmul ", d.dtype, ' ', d.batch > 0 ? concat(d.batch, " of ") : std::string(), d.m, 'x', d.n, 'x',
                     d.k, d.transpose_a ? " ta" : "", d.transpose_b ? " tb" : "", d.bias ? " bias" : "",
                     d.activation == ops::Activation::identity ? "" : concat(' ', ops::name_of(d.activation)),
                     accumulate ? " accumulate" : "",
                     d.accumulator_output ? concat(" in ", d.c_dtype()) : std::string(), ' ', choice);
  item.dtype = d.dtype;
  item.inputs = {
      {"a", d.a_shape(), d.dtype, uniform(1, -1, 1)},
      {"b", d.b_shape(), d.dtype, uniform(2, -1, 1)},
  };
  add_if(d.bias, item.inputs, {"bias", Shape{d.n}, ops::accumulation_dtype(d.dtype), uniform(3, -1, 1)});
  item.outputs = {{"c", d.c_shape(), d.c_dtype(), accumulate ? uniform(4, -1, 1) : Generator{}}};
  item.prepare = [=](Context& context) {
    const std::shared_ptr<ops::MatmulPlan> plan = ops::plan_matmul(context, d, choice);
    return PreparedOp{plan->workspace_bytes(), [=](Context& on, Views in, Views out, const TensorView& workspace) {
                        ops::matmul(on, *plan, in[0], in[1], d.bias ? in[2] : TensorView(), out[0], workspace);
                      }};
  };
  item.flops = d.flops();
  item.tolerance = d.dtype == DType::f64 ? 1e-15 : 1e-6 + rounding_of(d.c_dtype());
  return item;
}

/// Returns matrix products of 9 sizes: sides of 1, odd and prime sides, sides smaller and larger than a block of the
/// reference, with and without a batch. For each size there are all transpositions, plain, with a bias, and with
/// accumulation.
inline std::vector<ops::MatmulDesc> matmul_descs(DType dtype) {
  std::vector<ops::MatmulDesc> descs;
  const std::int64_t sizes[][4] = {{0, 1, 1, 1},     {0, 2, 3, 1}, {0, 128, 10, 64}, {0, 10, 64, 128}, {0, 5, 67, 31},
                                   {0, 33, 130, 17}, {1, 3, 5, 7}, {6, 17, 9, 8},    {3, 5, 67, 31}};
  for (const auto& [batch, m, n, k] : sizes) {
    for (int variant = 0; variant < 12; ++variant) {
      ops::MatmulDesc d;
      d.dtype = dtype;
      d.batch = batch;
      d.m = m;
      d.n = n;
      d.k = k;
      d.transpose_a = (variant & 1) != 0;
      d.transpose_b = (variant & 2) != 0;
      d.bias = variant / 4 == 1;
      d.grad_mode = variant / 4 == 2 ? ops::GradMode::accumulate : ops::GradMode::overwrite;
      descs.push_back(d);
    }
  }
  return descs;
}

/// Returns matrix products with every activation, with and without a bias. The sizes are one tile, more than one tile
/// or block of the reference in each direction, and a batch.
inline std::vector<ops::MatmulDesc> activated_matmul_descs(DType dtype) {
  std::vector<ops::MatmulDesc> descs;
  const std::int64_t sizes[][4] = {{0, 1, 1, 1}, {0, 67, 130, 17}, {3, 5, 67, 31}};
  for (const auto& [batch, m, n, k] : sizes) {
    for (const ops::Activation activation : kActivations) {
      for (const bool bias : {false, true}) {
        if (activation != ops::Activation::identity) {
          descs.push_back({.dtype = dtype,
                           .batch = batch,
                           .m = m,
                           .n = n,
                           .k = k,
                           .transpose_b = bias,  // layout of a linear layer
                           .bias = bias,
                           .activation = activation});
        }
      }
    }
  }
  return descs;
}

/// Returns matrix products for GPUs: a third of matmul_descs(), in which every size and every variant still occurs;
/// products with an activation; and products with sums so long that the kernels split them.
inline std::vector<ops::MatmulDesc> matmul_descs_for_devices() {
  std::vector<ops::MatmulDesc> descs;
  std::size_t i = 0;
  for (const ops::MatmulDesc& d : matmul_descs(DType::f32)) {
    if ((i + i / 12) % 3 == 0) {
      descs.push_back(d);
      descs.back().accumulator_output = i % 2 == 0;
    }
    ++i;
  }
  for (const ops::MatmulDesc& d : activated_matmul_descs(DType::f32)) {
    descs.push_back(d);
    descs.back().accumulator_output = i++ % 2 == 0;
  }
  ops::MatmulDesc d;
  d.m = 3;
  d.n = 5;
  d.k = 1101;
  d.bias = true;
  descs.push_back(d);
  d.activation = ops::Activation::relu;
  descs.push_back(d);
  d.activation = ops::Activation::identity;
  d.batch = 2;
  d.bias = false;
  d.transpose_b = true;
  d.grad_mode = ops::GradMode::accumulate;
  descs.push_back(d);
  return descs;
}

/// Returns the test cases of matmul_descs_for_devices() for a GPU, in each type, with each choice that choices(desc)
/// returns.
inline std::vector<DeviceCase> matmul_device_cases(
    const std::function<std::vector<std::string>(const ops::MatmulDesc&)>& choices) {
  std::vector<DeviceCase> items;
  for (ops::MatmulDesc d : matmul_descs_for_devices()) {
    const OpCase host = matmul_case(d, "reference");
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      d.dtype = dtype;
      for (const std::string& choice : choices(d)) {
        items.push_back(device_case(matmul_case(d, choice), host));
        if (d.bias && choice.starts_with("cublaslt")) {
          items.back().tolerance += rounding_of(d.c_dtype());  // cuBLASLt rounds the bias, too
        }
      }
    }
  }
  return items;
}

/// Returns the test cases for a GPU that use lockstep's own kernels.
inline std::vector<DeviceCase> matmul_device_cases() {
  return matmul_device_cases([](const ops::MatmulDesc&) { return std::vector<std::string>{"cuda"}; });
}

}  // namespace lockstep::testing
