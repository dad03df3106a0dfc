#pragma once

#include <cstddef>

#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep {

/// Enqueues dst = src, elementwise, on the context's stream. Only this function copies from one device to another. The
/// shapes must be equal; the views may have any strides and different element types. Conversion from floating point to
/// an integer type truncates toward zero; a value out of range becomes the type's nearest integer, NaN becomes 0.
/// Conversion from an integer to a smaller integer keeps the low bits.
///
/// The context's device must be that of src or dst; a copy from or to a CUDA device needs the CudaContext of that
/// device. For a copy within one CUDA device, or between two CUDA devices, both views must have one type and contiguous
/// rows (stride 1 on the innermost axis); otherwise UnsupportedError is thrown. Within one CUDA device,
/// ops::strided_copy also copies other types and strides. Views must not overlap. Throws ShapeError in three cases:
/// both views are contiguous and overlap (other overlaps are not detected); dst has stride 0 on an axis of more than
/// one element; a view's address is not a multiple of its element size.
///
/// A copy between host and CUDA device does not block if three conditions hold: the host memory is page-locked
/// (PinnedMemoryResource), src and dst have the same type, and the rows are contiguous in at most 64 blocks
/// (docs/copies.md). In this case the caller must keep the memory alive and unchanged until the stream has completed
/// the copy. If a condition does not hold, the call blocks: when it returns, src may be changed or freed, and dst is
/// complete.
void copy(Context& context, const TensorView& src, const TensorView& dst);

/// Copies like copy(), then waits for the copy and for the earlier work of the context's stream, but for no other
/// stream. Afterwards any memory may be changed or freed. Throws the errors of copy() and of the stream's earlier work.
void copy_now(Context& context, const TensorView& src, const TensorView& dst);

/// Options of a CudaContext's page-locked staging memory. Copies that the copy engine cannot do alone use this memory.
struct StagingOptions {
  /// Size of each of the two halves of the staging memory, in bytes; at least 64.
  std::size_t half_bytes = std::size_t{4} << 20;
  /// Largest copy of pageable memory, in bytes, that the driver does itself, without staging memory. The driver does
  /// this only if types are equal and there are no gaps.
  std::size_t driver_bytes = std::size_t{64} << 10;
  int threads = 0;  ///< number of threads that copy to or from a half of the staging memory; 0 means OpenMP's default
};

/// Allocates the staging memory now. Without this call, the first copy() that needs staging memory allocates it with
/// the default options. configure_staging() waits for the stream and frees the staging memory of an earlier call.
/// Throws UsageError for options out of range, and OutOfMemory.
void configure_staging(CudaContext& context, const StagingOptions& options = {});

}  // namespace lockstep
