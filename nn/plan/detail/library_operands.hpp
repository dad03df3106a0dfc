#pragma once

#include <string_view>

#include <lockstep/nn/plan/library_choices.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::nn {

[[nodiscard]] LibraryCall call_of(const ops::ConvPlan& plan);
[[nodiscard]] LibraryCall call_of(const ops::MatmulPlan& plan);

/// Tensors that a call reads and writes, in the order of conv2d() and matmul(). If the call has no bias, `bias` is not
/// given.
struct LibraryOperands {
  TensorView a, b, bias, out;
};

/// Returns the shapes and types of a call's tensors on the device, without memory.
[[nodiscard]] LibraryOperands operands_of(const LibraryCall& call, Device device);

/// Enqueues conv2d() or matmul() with `plan` on the operands `o`. `workspace` must have plan.workspace_bytes() bytes.
void enqueue(Context& context, const ops::ConvPlan& plan, const LibraryOperands& o, const TensorView& workspace);
void enqueue(Context& context, const ops::MatmulPlan& plan, const LibraryOperands& o, const TensorView& workspace);

/// Returns all choices for a call, from conv2d_choices() or matmul_choices().
[[nodiscard]] std::vector<std::string> choices_of(Context& context, const LibraryCall& call,
                                                  const ops::ConvListing& listing = {});

/// Returns the name of the provider of our own kernels, which supports every call: "reference" on the host, "cuda" on a
/// GPU.
[[nodiscard]] const char* own_kernels(Device device);
/// Returns true for a choice of our own kernels, such as "cuda" and "cuda:norm".
[[nodiscard]] bool is_own(std::string_view choice, Device device);

}  // namespace lockstep::nn
