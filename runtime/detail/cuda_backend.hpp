#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/detail/stream_state.hpp>
#include <lockstep/runtime/machine/gpu_check.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

/// Declares all functions that runtime/ needs from CUDA, without a CUDA header. Private to the runtime. In a build with
/// CUDA, runtime/cuda/ defines the functions. Otherwise cuda_absent.cpp defines them, and each function throws
/// DeviceError. The same files define the members of the memory resources of cuda_memory.hpp, configure_staging(),
/// num_gpus(), list_gpus(), probe_gpu(), gpu_state(), make_current() and why_no_gpus(). make_range_marker() is in
/// runtime/cuda/ or, without NVTX, in range_marker_absent.cpp.
namespace lockstep::detail {

/// Throws DeviceError unless `device` is a CUDA device that exists. The text has the device and the number of devices.
void require_cuda_device(Device device);

/// Returns the text of why_no_gpus() for `state`; an empty text if there are devices. Defined in gpu_check.cpp.
[[nodiscard]] std::string why_no_gpus(const GpuState& state);

/// Makes a non-blocking stream, which the state's destructor destroys.
[[nodiscard]] std::unique_ptr<StreamState> make_cuda_stream_state(Device device, int priority);
/// Borrows a stream of the host program; nullptr means the device's legacy default stream. The state does not destroy
/// the stream. Its destructor waits for the stream only if the stream still has waits for host streams.
[[nodiscard]] std::unique_ptr<StreamState> borrow_cuda_stream_state(Device device, CUstream_st* stream);
[[nodiscard]] std::shared_ptr<EventState> make_cuda_event_state(Device device, bool timing);

/// State of a Graph (graph.hpp).
struct GraphState {
  GraphState(Device d, std::size_t count) : device(d), nodes(count) {}
  GraphState(const GraphState&) = delete;
  GraphState& operator=(const GraphState&) = delete;
  virtual ~GraphState() = default;
  virtual void launch(CUstream_st* stream) = 0;
  virtual void upload(CUstream_st* stream) = 0;

  const Device device;
  const std::size_t nodes;
};
[[nodiscard]] std::unique_ptr<GraphState> capture_cuda_graph(Stream& stream, const std::function<void()>& f);
[[nodiscard]] bool cuda_is_capturing(Device device, CUstream_st* stream);

/// Enqueues dst = src on the stream of `context`, which is a CudaContext. copy() has checked that the shapes are equal
/// and not empty, that the views do not overlap, and that src or dst is on the context's device. Strides and types may
/// be any.
void cuda_copy(Context& context, const TensorView& src, const TensorView& dst);
/// Result of cudaMemGetInfo in bytes. cudaMemGetInfo makes the device's primary context if there is none.
struct DeviceMemory {
  std::size_t free = 0;
  std::size_t total = 0;
};
[[nodiscard]] DeviceMemory cuda_memory(Device device);
/// Enqueues work that sets `bytes` bytes of memory on the context's device to zero.
void cuda_zero(Context& context, void* data, std::size_t bytes);

}  // namespace lockstep::detail
