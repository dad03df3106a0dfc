#pragma once

#include <span>
#include <string_view>

#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::ops {

/// A copy from one tensor to another. Both contiguous, of one shape and one of the eight types.
struct CopyPair {
  TensorView src;
  TensorView dst;
};

/// dst = src for each pair, all on the context's device, bit by bit. It is for many small tensors, where one launch
/// each would cost more than moving the bytes: on a GPU one launch copies up to 80 pairs, whose addresses are a kernel
/// parameter. Pairs may have different types and shapes, may be empty, and may lie anywhere; 16-byte alignment on both
/// sides makes a pair faster. The order of the pairs is not defined: no dst may share memory with another tensor of the
/// call. On the host the list must live until the op has run. Deterministic, no workspace.
///
/// DeviceError for a tensor on another device. ShapeError when shapes differ, a tensor is not contiguous or has no
/// memory, the two tensors of a pair overlap (other overlaps are not checked), or an address is no multiple of the
/// element size. DTypeError when types differ (strided_copy converts). Nothing is copied when a pair is refused.
void grouped_copy(Context& context, std::span<const CopyPair> pairs);

/// Checks one pair except for its devices: the ShapeErrors and the DTypeError of grouped_copy(). `op` names the caller.
void require_copy_pair(std::string_view op, const TensorView& src, const TensorView& dst);

namespace backend {  // called after the checks of grouped_copy.cpp
LOCKSTEP_BACKENDS(grouped_copy);
}  // namespace backend

}  // namespace lockstep::ops
