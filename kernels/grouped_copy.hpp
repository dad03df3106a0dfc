#pragma once

#include <span>
#include <string_view>

#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::ops {

/// One tensor to another. Both contiguous, of one shape and one of the eight types.
struct CopyPair {
  TensorView src;
  TensorView dst;
};

/// dst = src for each pair, all on the context's device, bit by bit. For many small tensors, where a launch each would
/// cost more than the bytes: on a GPU one launch for up to 80 pairs, whose addresses travel as a kernel parameter. The
/// pairs may have different types and shapes, also without elements, and may lie anywhere; 16-byte boundaries on both
/// sides of a pair make it faster. In which order the pairs are copied is not defined: no dst may share memory with
/// another tensor of the call. On the host the list must live until the op has run. Deterministic, no workspace.
///
/// DeviceError for a tensor elsewhere; ShapeError when shapes differ, a tensor is not contiguous or has no memory, the
/// two of a pair overlap (other overlaps nobody looks for), or an address is no multiple of its element; DTypeError
/// when types differ (strided_copy converts). Nothing is copied when a pair is refused.
void grouped_copy(Context& context, std::span<const CopyPair> pairs);

/// The checks of a pair but for its devices: the ShapeErrors and the DTypeError above. `op` names the caller.
void require_copy_pair(std::string_view op, const TensorView& src, const TensorView& dst);

namespace backend {  // called after the checks of grouped_copy.cpp
void grouped_copy(CpuContext& context, std::span<const CopyPair> pairs);
void grouped_copy(CudaContext& context, std::span<const CopyPair> pairs);
}  // namespace backend

}  // namespace lockstep::ops
