// Defines, for a build without CUDA, the functions that runtime/cuda/ defines otherwise.
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/detail/cuda_backend.hpp>
#include <lockstep/runtime/machine/device_selection.hpp>
#include <lockstep/runtime/machine/usable_gpus.hpp>
#include <lockstep/runtime/memory/cuda_memory.hpp>
#include <lockstep/runtime/tensor/copy.hpp>

namespace lockstep {
namespace {

[[noreturn]] void throw_absent(const Device& device) {
  throw DeviceError(concat(device, ": this build has no CUDA, expected one with -DLOCKSTEP_CUDA=ON"));
}

}  // namespace

int num_gpus() {
  return 0;
}

std::vector<GpuInfo> list_gpus() {
  return {};
}

std::string probe_gpu(const GpuInfo& gpu, std::size_t) {
  throw_absent(Device::cuda(gpu.index));
}

GpuState gpu_state(Device device) {
  throw_absent(device);
}

void make_current(Device device) {
  if (device.kind == DeviceKind::cuda) {
    throw_absent(device);
  }
}

std::string why_no_gpus() {
  return "this build has no CUDA; configure with -DLOCKSTEP_CUDA=ON";
}

CudaMemoryResource::CudaMemoryResource(Device device) : device_(device) {
  throw_absent(device);
}
void* CudaMemoryResource::allocate(std::size_t, std::size_t, Stream&) {
  throw_absent(device_);
}
void CudaMemoryResource::deallocate(void*, std::size_t, std::size_t, Stream&) noexcept {}

CudaPoolResource::CudaPoolResource(Device device, const CudaPoolOptions& options) : device_(device), options_(options) {
  throw_absent(device);
}
CudaPoolResource::~CudaPoolResource() = default;
void* CudaPoolResource::allocate(std::size_t, std::size_t, Stream&) {
  throw_absent(device_);
}
void CudaPoolResource::deallocate(void*, std::size_t, std::size_t, Stream&) noexcept {}
std::optional<MemoryUsage> CudaPoolResource::usage() const {
  return std::nullopt;
}
void CudaPoolResource::trim(std::size_t) {}

PinnedMemoryResource::PinnedMemoryResource(Device device) : device_(device) {
  throw_absent(device);
}
void* PinnedMemoryResource::allocate(std::size_t, std::size_t, Stream&) {
  throw_absent(device_);
}
void PinnedMemoryResource::deallocate(void*, std::size_t, std::size_t, Stream&) noexcept {}

void configure_staging(CudaContext& context, const StagingOptions&) {
  throw_absent(context.device());
}

namespace detail {

void require_cuda_device(Device device) {
  throw_absent(device);
}
std::unique_ptr<StreamState> make_cuda_stream_state(Device device, int) {
  throw_absent(device);
}
std::unique_ptr<StreamState> borrow_cuda_stream_state(Device device, CUstream_st*) {
  throw_absent(device);
}
std::shared_ptr<EventState> make_cuda_event_state(Device device, bool) {
  throw_absent(device);
}
std::unique_ptr<GraphState> capture_cuda_graph(Stream& stream, const std::function<void()>&) {
  throw_absent(stream.device());
}
bool cuda_is_capturing(Device device, CUstream_st*) {
  throw_absent(device);
}
void cuda_copy(Context& context, const TensorView&, const TensorView&) {
  throw_absent(context.device());
}
DeviceMemory cuda_memory(Device device) {
  throw_absent(device);
}
void cuda_zero(Context& context, void*, std::size_t) {
  throw_absent(context.device());
}

}  // namespace detail
}  // namespace lockstep
