#pragma once

#include <lockstep/nn/plan/library_choices.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::nn {

/// The tensors that a call reads and writes, in the order of conv2d() and matmul(). Without a bias that is not given.
struct LibraryOperands {
  TensorView a, b, bias, out;
};

/// Shapes and types on the device, without memory.
[[nodiscard]] LibraryOperands operands_of(const LibraryCall& call, Device device);

/// The provider of our own kernels, whose first choice is for every call: "reference" or "cuda".
[[nodiscard]] const char* own_kernels(Device device);

}  // namespace lockstep::nn
