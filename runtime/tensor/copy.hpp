#pragma once

#include <cstddef>

#include <lockstep/runtime/stream/context.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep {

/// dst = src, elementwise. Shapes must be equal, strides may be anything on both sides, element types may differ
/// (floating to integer truncates toward zero; beyond the integer's range it gives the nearest integer of the type, and
/// NaN gives 0; integer to a smaller integer keeps the low bits). The only way across devices. Enqueued on the
/// context's stream; the context's device must be that of src or dst, and a copy that touches a CUDA device needs its
/// CudaContext. On one CUDA device and between two of them both views must be of one type and have contiguous rows,
/// that is an innermost axis of stride 1 on both sides (UnsupportedError otherwise; ops::strided_copy does the rest on
/// one device, with kernels, which runtime/ has none of). Overlapping views are not allowed (ShapeError when both are
/// contiguous and overlap), nor is a dst that has stride 0 on an axis of more than one element (ShapeError), nor a view
/// that begins at an address that is no multiple of the size of its element (ShapeError).
///
/// Between host and CUDA device: page-locked host memory (PinnedMemoryResource) of one type with contiguous rows, in at
/// most 64 blocks (docs/copies.md), must stay alive and unchanged until the stream has passed the copy, and does not
/// block. All other host memory makes the call block: afterwards src may be changed or freed, and dst is complete.
void copy(Context& context, const TensorView& src, const TensorView& dst);

/// copy(), and waits until it and what was enqueued on the context's stream before it is done; no other stream is
/// waited for. Any memory may be changed or freed afterwards. Throws what copy() throws, and the error of the stream's
/// earlier work.
void copy_now(Context& context, const TensorView& src, const TensorView& dst);

/// Page-locked memory of a CudaContext through which copies go that the copy engine cannot do by itself.
struct StagingOptions {
  /// Bytes of each of the two halves; at least 64.
  std::size_t half_bytes = std::size_t{4} << 20;
  /// Pageable memory without gaps, of one type, of at most so many bytes is left to the driver.
  std::size_t driver_bytes = std::size_t{64} << 10;
  int threads = 0;  ///< that fill and empty a half; 0: what OpenMP would use here
};

/// Allocates the staging memory now (copy() does it at its first need, with the default options). Memory from an
/// earlier call is given back, after a wait for the stream. UsageError for options out of range, OutOfMemory.
void configure_staging(CudaContext& context, const StagingOptions& options = {});

}  // namespace lockstep
