#include <lockstep/runtime/context/context.hpp>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/openmp.hpp>
#include <lockstep/runtime/machine/gpu_check.hpp>
#include <lockstep/runtime/machine/instruction_sets.hpp>
#include <lockstep/runtime/memory/cuda_memory.hpp>

namespace lockstep {
namespace {

/// Checks the options and the device. A CudaContext calls this function first, so that an unusable device gives an
/// error that explains the reason.
Device checked(Device device, const CudaContextOptions& options) {
  require<UsageError>(options.memory == nullptr || options.memory_limit == 0, "context on ", device,
                      ": memory_limit is ", options.memory_limit,
                      ", expected 0 with a borrowed memory resource, which has its own limit");
  check_gpu(device, options.memory == nullptr ? GpuMemory::needed : GpuMemory::held);
  return device;
}

std::unique_ptr<MemoryResource> new_cuda_memory(Device device, const CudaContextOptions& options) {
  if (options.memory != nullptr) {
    return nullptr;
  }
  CudaPoolOptions pool;
  if (options.memory_limit != 0) {
    pool.limit_bytes = options.memory_limit;
  }
  return std::make_unique<CudaPoolResource>(device, pool);
}

std::unique_ptr<Stream> new_cuda_stream(Device device, std::optional<CUstream_st*> borrowed) {
  return std::make_unique<Stream>(borrowed ? Stream::borrow_cuda(device, *borrowed) : Stream::cuda(device));
}

}  // namespace

Context::Context(Device device, Stream* borrowed_stream, std::unique_ptr<Stream> owned_stream,
                 MemoryResource* borrowed_memory, std::unique_ptr<MemoryResource> owned_memory)
    : device_(device),
      owned_stream_(std::move(owned_stream)),
      owned_memory_(std::move(owned_memory)),
      stream_(owned_stream_ ? owned_stream_.get() : borrowed_stream),
      memory_(owned_memory_ ? owned_memory_.get() : borrowed_memory) {
  require_processor();  // checked for GPUs, too, because a CudaContext also runs host kernels
  require<DeviceError>(stream_->device() == device, "context on ", device, ": its stream is on ", stream_->device(),
                       ", expected both on one device");
  require<DeviceError>(memory_->device() == device, "context on ", device, ": its memory resource is on ",
                       memory_->device(), ", expected both on one device");
}

CpuContext::CpuContext(const Options& options)
    : Context(Device::cpu(), options.stream,
              options.stream != nullptr ? nullptr : std::make_unique<Stream>(Stream::host_inline()), options.memory,
              options.memory != nullptr ? nullptr : std::make_unique<HostMemoryResource>()),
      threads_(options.threads != 0 ? given_threads(options.threads) : default_threads()) {
  require<UsageError>(options.threads >= 0, "context: threads is ", options.threads, ", expected at least 0");
}

// A braced initializer list evaluates its arguments from left to right, so checked() runs first.
CudaContext::CudaContext(Device device, const Options& options)
    : Context{checked(device, options), nullptr, new_cuda_stream(device, options.stream), options.memory,
              new_cuda_memory(device, options)} {
  if (options.dependent_launches) {
    stream().launch_dependently(true);
  }
}

std::unique_ptr<Context> make_context(Device device) {
  if (device.kind == DeviceKind::cuda) {
    return std::make_unique<CudaContext>(device);
  }
  return std::make_unique<CpuContext>();
}

}  // namespace lockstep
