#pragma once

#include <string_view>

#include <lockstep/nn/plan/library_choices.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::nn {

[[nodiscard]] LibraryCall call_of(const ops::ConvPlan& plan);
[[nodiscard]] LibraryCall call_of(const ops::MatmulPlan& plan);

/// The tensors that a call reads and writes, in the order of conv2d() and matmul(). Without a bias that is not given.
struct LibraryOperands {
  TensorView a, b, bias, out;
};

/// Shapes and types on the device, without memory.
[[nodiscard]] LibraryOperands operands_of(const LibraryCall& call, Device device);

/// Enqueues what a plan computes; workspace: as it needs.
void enqueue(Context& context, const ops::ConvPlan& plan, const LibraryOperands& o, const TensorView& workspace);
void enqueue(Context& context, const ops::MatmulPlan& plan, const LibraryOperands& o, const TensorView& workspace);

/// conv2d_choices() or matmul_choices().
[[nodiscard]] std::vector<std::string> choices_of(Context& context, const LibraryCall& call,
                                                  const ops::ConvListing& listing = {});

/// The provider of our own kernels, which supports every call: "reference" or "cuda".
[[nodiscard]] const char* own_kernels(Device device);
/// Whether a choice is one of that provider's: "cuda", "cuda:norm".
[[nodiscard]] bool is_own(std::string_view choice, Device device);

}  // namespace lockstep::nn
