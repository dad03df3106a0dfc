#include <cstdint>
#include <optional>
#include <utility>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/cuda/check.hpp>
#include <lockstep/runtime/cuda/device_guard.hpp>
#include <lockstep/runtime/cuda/staging.hpp>
#include <lockstep/runtime/detail/copy_blocks.hpp>
#include <lockstep/runtime/detail/cuda_backend.hpp>

namespace lockstep {
namespace {

constexpr std::int64_t kMostBlocks = 64;  // largest number of CUDA calls for a copy of pinned memory without staging

/// Returns true if the driver does not know the memory at this address, because it is from malloc, mmap or a stack.
bool is_pageable(Device here, const void* address) {
  cudaPointerAttributes attributes{};
  LOCKSTEP_CUDA_CHECK(here, cudaPointerGetAttributes(&attributes, address));
  return attributes.type == cudaMemoryTypeUnregistered;
}

/// Returns true if the view's first or last element is in pageable memory. Both are checked, because a registration of
/// host memory may end inside the view.
bool is_pageable(Device here, const TensorView& host) {
  std::int64_t first = 0;
  std::int64_t last = 0;
  for (int axis = 0; axis < host.shape.rank(); ++axis) {
    const std::int64_t span = (host.shape[axis] - 1) * host.strides[axis];
    (span < 0 ? first : last) += span;
  }
  return is_pageable(here, cuda::element(host, first)) || is_pageable(here, cuda::element(host, last));
}

void copy_host(Context& context, const TensorView& host, const TensorView& device, bool to_device) {
  const Device here = context.device();
  const cuda::DeviceGuard guard(here);
  const auto [loops, host_offset, device_offset] = detail::order_loops(host, device);
  const std::size_t size = size_of(device.dtype);
  bool direct = host.dtype == device.dtype && detail::has_rows(loops);
  cuda::Staging* staging = nullptr;
  bool blocks = false;
  if (direct && is_pageable(here, host)) {
    blocks = true;
    staging = &cuda::Staging::of(context);
    direct = loops.rank == 1 && device.bytes() <= staging->options().driver_bytes;
  } else if (direct) {
    direct = detail::plan_blocks(loops, size).blocks() <= kMostBlocks;
  }
  require<StateError>(!((blocks || !direct) && detail::cuda_is_capturing(here, context.stream().cuda_handle())),
                      "copy: the stream is being captured, and ", host, " is ",
                      blocks
                          ? "pageable, expected page-locked memory (PinnedMemoryResource)"
                          : "converted or gathered on its way, expected the dtype and layout of the device's tensor");
  std::optional<SyncScope> scope;
  if (blocks || !direct) {
    scope.emplace(context.stream(), "copy", SyncReason::host_copy, device.bytes());
  }
  const bool by_driver = direct && blocks;
  if (by_driver && to_device) {
    // Waits, because the next call makes the driver read src, and earlier work of the stream may still write src.
    context.stream().synchronize();
  }
  if (direct && to_device) {
    cuda::enqueue_blocks(context.stream(), device.device, cuda::element(device, device_offset), host.device,
                         cuda::element(host, host_offset), loops, size);
  } else if (direct) {
    CopyLoops back = loops;
    std::swap(back.src, back.dst);
    cuda::enqueue_blocks(context.stream(), host.device, cuda::element(host, host_offset), device.device,
                         cuda::element(device, device_offset), back, size);
    if (by_driver) {
      context.stream().synchronize();  // waits until the copy is complete; also rethrows an error of earlier work
    }
  } else {
    staging = staging != nullptr ? staging : &cuda::Staging::of(context);
    to_device ? staging->from_host(host, device) : staging->to_host(device, host);
  }
}

}  // namespace

void configure_staging(CudaContext& context, const StagingOptions& options) {
  cuda::Staging::of(context).configure(options);
}

namespace detail {

void cuda_copy(Context& context, const TensorView& src, const TensorView& dst) {
  if (src.device.kind == DeviceKind::cpu) {
    return copy_host(context, src, dst, true);
  }
  if (dst.device.kind == DeviceKind::cpu) {
    return copy_host(context, dst, src, false);
  }
  const auto [loops, from, to] = order_loops(src, dst);
  require<UnsupportedError>(src.dtype == dst.dtype && has_rows(loops), "copy from ", src, " with strides ", src.strides,
                            " to ", dst, " with strides ", dst.strides,
                            ": expected one type and contiguous rows in both, between GPUs and on one (on one GPU "
                            "ops::strided_copy does the rest)");
  if (src.device != dst.device) {
    auto& staging = cuda::Staging::of(context);
    if (!staging.reaches(src.device == context.device() ? dst : src)) {
      return staging.across(src, dst);
    }
  }
  cuda::enqueue_blocks(context.stream(), dst.device, cuda::element(dst, to), src.device, cuda::element(src, from),
                       loops, size_of(dst.dtype));
}

void cuda_zero(Context& context, void* data, std::size_t bytes) {
  const cuda::DeviceGuard guard(context.device());
  LOCKSTEP_CUDA_CHECK(context.device(), cudaMemsetAsync(data, 0, bytes, context.stream().cuda_handle()));
}

}  // namespace detail
}  // namespace lockstep
