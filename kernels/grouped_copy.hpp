#pragma once

#include <span>
#include <string_view>

#include <lockstep/kernels/dispatch.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::ops {

/// A copy from src to dst. Both tensors are contiguous, and have the same shape and type (any of the eight types).
struct CopyPair {
  TensorView src;
  TensorView dst;
};

/// Copies src to dst for each pair, without conversion, all on the context's device. This op is for many small tensors,
/// for which one launch per tensor would take longer than the copy itself. On a GPU one launch copies up to 80 pairs.
/// Pairs may have different types and shapes, and may be empty. Pairs whose tensors are both aligned to 16 bytes are
/// copied faster. The order of the pairs is not defined: no dst may share memory with another tensor of the call. On
/// the host the array `pairs` must live until the op has run. Deterministic, no workspace.
///
/// Throws DeviceError for a tensor on another device than the context's. Throws ShapeError in four cases: the shapes of
/// a pair differ; a tensor is not contiguous or has no memory; the two tensors of a pair overlap (overlaps between
/// pairs are not checked); an address is not a multiple of the element size. Throws DTypeError when the types of a pair
/// differ. After an error no pair has been copied.
void grouped_copy(Context& context, std::span<const CopyPair> pairs);

/// Throws the ShapeErrors and the DTypeError of grouped_copy() for one pair. Does not check devices. `op` names the
/// caller.
void require_copy_pair(std::string_view op, const TensorView& src, const TensorView& dst);

namespace backend {  // the functions that grouped_copy.cpp calls after its checks
LOCKSTEP_BACKENDS(grouped_copy);
}  // namespace backend

}  // namespace lockstep::ops
