#pragma once

#include <lockstep/kernels/strided_copy.hpp>
#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/tensor/copy.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::nn {

/// Enqueues the copy of `from` to `to`. Each view has any strides and any type, and is on the context's device or in
/// host memory. If both views are on the same GPU, a kernel copies. Otherwise runtime's copy() copies, which may wait
/// for the stream.
inline void copy_across(Context& context, const TensorView& from, const TensorView& to) {
  if (from.device == to.device && context.device().kind == DeviceKind::cuda) {
    ops::strided_copy(context, from, to);
  } else {
    copy(context, from, to);
  }
}

}  // namespace lockstep::nn
