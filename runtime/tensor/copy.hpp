#pragma once

#include <cstddef>

#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep {

/// dst = src, elementwise, enqueued on the context's stream. The only way across devices. Shapes must be equal; strides
/// may be anything and element types may differ. Floating to integer truncates toward zero; a value beyond the
/// integer's range gives the nearest integer of the type, NaN gives 0. Integer to a smaller integer keeps the low bits.
///
/// The context's device must be that of src or dst; a copy that touches a CUDA device needs its CudaContext. On one
/// CUDA device, and between two, both views must have one type and contiguous rows, that is stride 1 on the innermost
/// axis (UnsupportedError otherwise; on one device ops::strided_copy does the rest with a kernel). ShapeError when both
/// views are contiguous and overlap (no views may overlap), when dst has stride 0 on an axis of more than one element,
/// and when a view's address is no multiple of its element size.
///
/// Between host and CUDA device, a copy of page-locked host memory (PinnedMemoryResource) does not block when the type
/// is the same on both sides and the rows are contiguous, in at most 64 blocks (docs/copies.md): the memory must stay
/// alive and unchanged until the stream has passed the copy. With all other host memory the call blocks: when it
/// returns, src may be changed or freed, and dst is complete.
void copy(Context& context, const TensorView& src, const TensorView& dst);

/// As copy(), then waits for the copy and for the earlier work of the context's stream, but for no other stream.
/// Afterwards any memory may be changed or freed. Throws the errors of copy(), and the error of the stream's earlier
/// work.
void copy_now(Context& context, const TensorView& src, const TensorView& dst);

/// Options of a CudaContext's page-locked staging memory, for copies that the copy engine cannot do on its own.
struct StagingOptions {
  /// Bytes of each of the two halves; at least 64.
  std::size_t half_bytes = std::size_t{4} << 20;
  /// Pageable memory of one type, without gaps and of at most this many bytes, is copied by the driver.
  std::size_t driver_bytes = std::size_t{64} << 10;
  int threads = 0;  ///< threads that fill and empty a half; 0: OpenMP's default
};

/// Allocates the staging memory now; otherwise the first copy() that needs it allocates it, with the default options.
/// Waits for the stream and frees the memory of an earlier call. UsageError for options out of range, OutOfMemory.
void configure_staging(CudaContext& context, const StagingOptions& options = {});

}  // namespace lockstep
