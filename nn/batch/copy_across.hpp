#pragma once

#include <lockstep/kernels/strided_copy.hpp>
#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/tensor/copy.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::nn {

/// Enqueues to = from for views of any strides and types, on the context's device or in host memory: with a kernel on
/// one GPU, otherwise with runtime's copy(), which may wait.
inline void copy_across(Context& context, const TensorView& from, const TensorView& to) {
  if (from.device == to.device && context.device().kind == DeviceKind::cuda) {
    ops::strided_copy(context, from, to);
  } else {
    copy(context, from, to);
  }
}

}  // namespace lockstep::nn
