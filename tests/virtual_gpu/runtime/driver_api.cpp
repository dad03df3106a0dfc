// Defines the functions of the CUDA driver that runtime/ looks up by name (cudaGetDriverEntryPointByVersion).
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "machine.hpp"

using lockstep::standin::Machine;
using lockstep::standin::Others;
using lockstep::standin::Queue;
using lockstep::standin::thread_state;

namespace {

/// One call of the driver: locks the machine, counts the call, and gets an injected error. Runtime and driver use the
/// same error numbers.
struct Call {
  explicit Call(const char* name)
      : machine(Machine::instance()), lock(machine.mutex), status(static_cast<CUresult>(machine.enter(name, false))) {
    thread_state().last_error = before;  // last_error belongs to the runtime API; driver calls must not change it
  }
  cudaError_t before = thread_state().last_error;
  Machine& machine;
  std::unique_lock<std::mutex> lock;
  CUresult status;
  [[nodiscard]] bool refused() const { return status != CUDA_SUCCESS; }
  [[nodiscard]] bool exists(int device) const { return device >= 0 && device < machine.options.devices; }
  [[nodiscard]] CUresult violate(const char* text) const {
    machine.violations.emplace_back(text);
    return CUDA_ERROR_INVALID_CONTEXT;
  }
};

// Returns the handle of a device's context, which is the device's index plus one.
CUcontext context_of(int device) {
  return reinterpret_cast<CUcontext>(static_cast<std::uintptr_t>(device) + 1);
}
int device_of(CUcontext context) {
  return static_cast<int>(reinterpret_cast<std::uintptr_t>(context)) - 1;
}

CUresult init(unsigned int) {
  return Call("cuInit").status;
}

CUresult device_get(CUdevice* device, int ordinal) {
  const Call call("cuDeviceGet");
  if (!call.refused() && !call.exists(ordinal)) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  *device = ordinal;
  return call.status;
}

CUresult device_get_attribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  const Call call("cuDeviceGetAttribute");
  if (!call.exists(device)) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE:
      *value = call.machine.others[device].mode;
      return call.status;
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
      *value = call.machine.options.memory_waits ? 1 : 0;
      return call.status;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult retain(CUcontext* context, CUdevice device) {
  LOCKSTEP_CALL("cuDevicePrimaryCtxRetain");
  const Others& others = call.machine.others[device];
  const bool exclusive = others.mode == cudaComputeModeExclusiveProcess && others.running;
  if (exclusive || others.mode == cudaComputeModeProhibited) {
    return CUDA_ERROR_DEVICE_UNAVAILABLE;
  }
  ++call.machine.retained[device];
  *context = context_of(device);
  return CUDA_SUCCESS;
}

CUresult release(CUdevice device) {
  const Call call("cuDevicePrimaryCtxRelease");
  if (call.machine.retained[device] == 0) {
    return call.violate("cuDevicePrimaryCtxRelease: the context was not retained");
  }
  if (--call.machine.retained[device] == 0) {
    call.machine.retained.erase(device);
  }
  return call.status;
}

CUresult push(CUcontext context) {
  LOCKSTEP_CALL("cuCtxPushCurrent");
  const int device = device_of(context);
  if (!call.machine.contexts.contains(device) && !call.machine.retained.contains(device)) {
    return call.violate("cuCtxPushCurrent: the context is not there");
  }
  thread_state().contexts.push_back(device);
  ++thread_state().pushed;
  return CUDA_SUCCESS;
}

CUresult pop(CUcontext* context) {
  const Call call("cuCtxPopCurrent");
  if (thread_state().pushed == 0) {
    return call.violate("cuCtxPopCurrent: nothing was pushed");
  }
  *context = context_of(thread_state().contexts.back());
  thread_state().contexts.pop_back();
  --thread_state().pushed;
  return call.status;
}

CUresult get_device(CUdevice* device) {
  LOCKSTEP_CALL("cuCtxGetDevice");
  if (thread_state().contexts.empty()) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  *device = thread_state().current();
  return CUDA_SUCCESS;
}

CUresult get_state(CUdevice device, unsigned int* flags, int* active) {
  const Call call("cuDevicePrimaryCtxGetState");
  if (!call.refused() && !call.exists(device)) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  *flags = 0;
  *active = call.machine.contexts.contains(device) || call.machine.retained.contains(device) ? 1 : 0;
  return call.status;
}

CUresult mem_get_info(std::size_t* free, std::size_t* total) {
  const Call call("cuMemGetInfo");
  if (thread_state().contexts.empty()) {
    return call.violate("cuMemGetInfo: no context is current");
  }
  const int device = thread_state().current();
  *total = call.machine.options.bytes_per_device;
  *free = call.machine.free_bytes(device);
  return call.status;
}

CUresult mem_alloc(CUdeviceptr* pointer, std::size_t bytes) {
  LOCKSTEP_CALL("cuMemAlloc");
  if (thread_state().contexts.empty() || bytes == 0) {
    return call.violate("cuMemAlloc: no context is current, or nothing is asked for");
  }
  void* memory = nullptr;
  const cudaError_t status = call.machine.allocate(&memory, bytes, false, thread_state().current());
  thread_state().last_error = call.before;
  *pointer = reinterpret_cast<CUdeviceptr>(memory);
  return static_cast<CUresult>(status);
}

CUresult mem_free(CUdeviceptr pointer) {
  const Call call("cuMemFree");
  const auto status = static_cast<CUresult>(call.machine.release(reinterpret_cast<void*>(pointer), false));
  return call.refused() ? call.status : status;
}

CUresult pointer_attribute(void* data, CUpointer_attribute attribute, CUdeviceptr pointer) {
  LOCKSTEP_CALL("cuPointerGetAttribute");
  const lockstep::standin::Block* block = call.machine.find(reinterpret_cast<const void*>(pointer));
  if (block == nullptr || block->freed || attribute != CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE) {
    return call.violate("cuPointerGetAttribute: not memory of CUDA's, or an unexpected attribute");
  }
  *static_cast<lockstep::standin::Pool**>(data) = block->pool;
  return CUDA_SUCCESS;
}

CUresult stream_wait_value(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags) {
  LOCKSTEP_CALL("cuStreamWaitValue64");
  using Value = std::atomic<std::uint64_t>;
  const auto* memory = reinterpret_cast<const Value*>(address);
  Queue* queue = call.machine.queue_of(stream);
  bool pinned = false;
  if (queue == nullptr || queue->capture != nullptr || flags != CU_STREAM_WAIT_VALUE_GEQ ||
      address % sizeof value != 0 || !call.machine.options.memory_waits ||
      call.machine.check_host("cuStreamWaitValue64", memory, sizeof value, pinned) != cudaSuccess || !pinned) {
    thread_state().last_error = call.before;
    return call.violate("cuStreamWaitValue64: expected page-locked memory and a stream that is not captured");
  }
  call.machine.enqueue(*queue, {.name = "cuStreamWaitValue64",
                                .uses = {{reinterpret_cast<const std::byte*>(memory), sizeof value}},
                                .ready = [memory, value] {
                                  return static_cast<std::int64_t>(memory->load(std::memory_order_acquire) - value) >=
                                         0;
                                }});
  return CUDA_SUCCESS;
}

CUresult get_error_name(CUresult error, const char** text) {
  switch (error) {
    case CUDA_ERROR_OUT_OF_MEMORY:
      *text = "CUDA_ERROR_OUT_OF_MEMORY";
      return CUDA_SUCCESS;
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
      *text = "CUDA_ERROR_DEVICE_UNAVAILABLE";
      return CUDA_SUCCESS;
    case CUDA_ERROR_UNKNOWN:
      *text = "CUDA_ERROR_UNKNOWN";
      return CUDA_SUCCESS;
    case CUDA_ERROR_ECC_UNCORRECTABLE:
      *text = "CUDA_ERROR_ECC_UNCORRECTABLE";
      return CUDA_SUCCESS;
    default:
      *text = nullptr;
      return CUDA_ERROR_INVALID_VALUE;
  }
}

struct Entry {
  std::string_view name;
  void* function;
};

template <class Function>
void* address(Function* function) {
  return reinterpret_cast<void*>(function);
}

}  // namespace

extern "C" cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned int /*version*/,
                                                        unsigned long long /*flags*/,
                                                        cudaDriverEntryPointQueryResult* found) {
  auto& machine = Machine::instance();
  const std::lock_guard lock(machine.mutex);
  if (const cudaError_t status = machine.enter("cudaGetDriverEntryPointByVersion", false); status != cudaSuccess) {
    return status;
  }
  const Entry entries[] = {{"cuInit", address(init)},
                           {"cuDeviceGet", address(device_get)},
                           {"cuDeviceGetAttribute", address(device_get_attribute)},
                           {"cuDevicePrimaryCtxRetain", address(retain)},
                           {"cuDevicePrimaryCtxRelease", address(release)},
                           {"cuCtxPushCurrent", address(push)},
                           {"cuCtxPopCurrent", address(pop)},
                           {"cuCtxGetDevice", address(get_device)},
                           {"cuDevicePrimaryCtxGetState", address(get_state)},
                           {"cuMemGetInfo", address(mem_get_info)},
                           {"cuMemAlloc", address(mem_alloc)},
                           {"cuMemFree", address(mem_free)},
                           {"cuPointerGetAttribute", address(pointer_attribute)},
                           {"cuStreamWaitValue64", address(stream_wait_value)},
                           {"cuGetErrorName", address(get_error_name)}};
  *function = nullptr;
  for (const Entry& entry : entries) {
    if (entry.name == symbol) {
      *function = entry.function;
    }
  }
  *found = *function == nullptr ? cudaDriverEntryPointSymbolNotFound : cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
