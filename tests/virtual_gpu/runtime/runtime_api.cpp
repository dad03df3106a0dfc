// Defines the functions of the CUDA runtime library that runtime/ uses.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "machine.hpp"

using lockstep::standin::Block;
using lockstep::standin::Call;
using lockstep::standin::EventObject;
using lockstep::standin::Machine;
using lockstep::standin::Pool;
using lockstep::standin::Queue;
using lockstep::standin::Rows;
using lockstep::standin::thread_state;
using lockstep::standin::Ticket;
using lockstep::standin::Work;

namespace {

std::byte* bytes_of(void* pointer) {
  return static_cast<std::byte*>(pointer);
}
const std::byte* bytes_of(const void* pointer) {
  return static_cast<const std::byte*>(pointer);
}

/// Combines the errors of a call that releases something or waits. Such a call does its work even if it returns the
/// error of earlier work.
cudaError_t first_error(cudaError_t injected, cudaError_t own) {
  return injected != cudaSuccess ? injected : own;
}

cudaError_t copy_host_to_device(Call& call, const char* name, void* dst, const void* src, const Rows& rows,
                                Queue& queue) {
  Machine& machine = call.machine;
  bool pinned = false;
  cudaError_t status = machine.check_device(name, dst, rows.dst_bytes(), queue.device);
  if (status == cudaSuccess) {
    status = machine.check_host(name, src, rows.src_bytes(), pinned);
  }
  if (status != cudaSuccess) {
    return status;
  }
  if (pinned) {
    return machine.enqueue(queue, {.name = name,
                                   .run = [&machine, dst, src, rows] { machine.move(dst, src, rows); },
                                   .uses = {{bytes_of(dst), rows.dst_bytes()}, {bytes_of(src), rows.src_bytes()}}});
  }
  if (queue.capture != nullptr) {
    return machine.spoil(queue, cudaErrorStreamCaptureUnsupported);
  }
  // The source is pageable memory, so the call reads the source at once, whatever work the stream still has. (CUDA may
  // or may not wait for that work.) The transfer comes later in stream order.
  std::vector<std::byte> staged(bytes_of(src), bytes_of(src) + rows.src_bytes());
  machine.enqueue(queue,
                  {.name = name,
                   .run = [&machine, dst, rows, staged = std::move(staged)] { machine.move(dst, staged.data(), rows); },
                   .uses = {{bytes_of(dst), rows.dst_bytes()}}});
  return cudaSuccess;
}

cudaError_t copy_device_to_host(Call& call, const char* name, void* dst, const void* src, const Rows& rows,
                                Queue& queue) {
  Machine& machine = call.machine;
  bool pinned = false;
  cudaError_t status = machine.check_device(name, src, rows.src_bytes(), queue.device);
  if (status == cudaSuccess) {
    status = machine.check_host(name, dst, rows.dst_bytes(), pinned);
  }
  if (status != cudaSuccess) {
    return status;
  }
  if (!pinned && queue.capture != nullptr) {
    return machine.spoil(queue, cudaErrorStreamCaptureUnsupported);
  }
  status = machine.enqueue(queue, {.name = name,
                                   .run = [&machine, dst, src, rows] { machine.move(dst, src, rows); },
                                   .uses = {{bytes_of(dst), rows.dst_bytes()}, {bytes_of(src), rows.src_bytes()}}});
  // If the target is pageable memory, the call returns after the copy has completed.
  return pinned || status != cudaSuccess ? status
                                         : machine.run_until(call.lock, &queue, [&] { return queue.work.empty(); });
}

cudaError_t copy_device_to_device(Machine& machine, const char* name, void* dst, int dst_device, const void* src,
                                  int src_device, const Rows& rows, Queue& queue) {
  cudaError_t status = machine.check_device(name, dst, rows.dst_bytes(), dst_device);
  if (status == cudaSuccess) {
    status = machine.check_device(name, src, rows.src_bytes(), src_device);
  }
  if (status == cudaSuccess) {
    status = machine.enqueue(queue, {.name = name,
                                     .run = [&machine, dst, src, rows] { machine.move(dst, src, rows); },
                                     .uses = {{bytes_of(dst), rows.dst_bytes()}, {bytes_of(src), rows.src_bytes()}}});
  }
  return status;
}

/// Returns true if this is the wait that forget_wait() chose.
bool is_forgotten(Machine& machine, std::string_view name) {
  if (machine.forget_countdown == 0 || machine.forget_thread != std::this_thread::get_id() ||
      (!machine.forget_name.empty() && machine.forget_name != name) || --machine.forget_countdown > 0) {
    return false;
  }
  machine.wait_forgotten = true;
  return true;
}

/// Implements cudaMemcpyAsync and its 2-D and 3-D forms.
cudaError_t copy_rows(Call& call, const char* name, void* dst, const void* src, const Rows& rows, cudaMemcpyKind kind,
                      cudaStream_t stream) {
  Queue* queue = call.machine.queue_of(stream);
  if (queue == nullptr) {
    return call.machine.violate(std::string(name) + ": not a stream", cudaErrorInvalidResourceHandle);
  }
  switch (kind) {
    case cudaMemcpyHostToDevice:
      return copy_host_to_device(call, name, dst, src, rows, *queue);
    case cudaMemcpyDeviceToHost:
      return copy_device_to_host(call, name, dst, src, rows, *queue);
    case cudaMemcpyDeviceToDevice:
      return copy_device_to_device(call.machine, name, dst, queue->device, src, queue->device, rows, *queue);
    default:
      return call.machine.violate(std::string(name) + ": unexpected kind", cudaErrorInvalidValue);
  }
}

cudaError_t copy_between(Call& call, const char* name, void* dst, int dst_device, const void* src, int src_device,
                         const Rows& rows, cudaStream_t stream) {
  Queue* queue = call.machine.queue_of(stream);
  if (queue == nullptr || (queue->device != dst_device && queue->device != src_device)) {
    return call.machine.violate(std::string(name) + ": not a stream of one of the two devices",
                                cudaErrorInvalidResourceHandle);
  }
  for (const void* pointer : {static_cast<const void*>(dst), src}) {
    const Block* block = call.machine.find(pointer);
    if (block != nullptr && block->pool != nullptr && block->device != queue->device &&
        !block->pool->readers.contains(queue->device)) {
      call.machine.violations.push_back(std::string(name) + ": the pool of device " + std::to_string(block->device) +
                                        " is not open to device " + std::to_string(queue->device));
    }
  }
  return copy_device_to_device(call.machine, name, dst, dst_device, src, src_device, rows, *queue);
}

/// Checks CUDA's limits: rows must not overlap, and slices must be whole rows apart.
cudaError_t check_pitches(Machine& machine, const char* name, const Rows& rows) {
  constexpr std::size_t kMostPitch = (std::size_t{1} << 31) - 1;
  for (const std::size_t pitch : {rows.src_pitch, rows.dst_pitch}) {
    if (pitch < rows.width || pitch > kMostPitch) {
      return machine.violate(std::string(name) + ": pitch " + std::to_string(pitch) + " for rows of " +
                                 std::to_string(rows.width) + " bytes",
                             cudaErrorInvalidPitchValue);
    }
  }
  if (rows.depth > 1 &&
      (rows.src_slice < rows.height * rows.src_pitch || rows.dst_slice < rows.height * rows.dst_pitch)) {
    return machine.violate(std::string(name) + ": slices overlap", cudaErrorInvalidValue);
  }
  return cudaSuccess;
}

Rows rows_of(const cudaExtent& extent, const cudaPitchedPtr& dst, const cudaPitchedPtr& src) {
  return {.width = extent.width,
          .height = extent.height,
          .depth = extent.depth,
          .dst_pitch = dst.pitch,
          .src_pitch = src.pitch,
          .dst_slice = dst.pitch * dst.ysize,
          .src_slice = src.pitch * src.ysize};
}

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  Call call("cudaGetDeviceCount", false);
  *count = 0;
  if (!call.refused()) {
    *count = call.machine.options.devices;
  }
  return call.status;
}

// Each of the UUID's 16 bytes is the device's index.
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  LOCKSTEP_CALL("cudaGetDeviceProperties", false);
  if (device < 0 || device >= call.machine.options.devices) {
    return cudaErrorInvalidDevice;
  }
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "Stand-in %d", device);
  std::memset(properties->uuid.bytes, device, sizeof properties->uuid.bytes);
  properties->totalGlobalMem = call.machine.options.bytes_per_device;
  properties->major = call.machine.options.capability / 10;
  properties->minor = call.machine.options.capability % 10;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  LOCKSTEP_CALL("cudaDeviceGetAttribute", false);
  if (device < 0 || device >= call.machine.options.devices) {
    return call.machine.fail(cudaErrorInvalidDevice);
  }
  switch (attribute) {
    case cudaDevAttrComputeMode:
      *value = call.machine.others[device].mode;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = call.machine.options.capability / 10;
      return cudaSuccess;
    case cudaDevAttrMemoryPoolsSupported:
      *value = call.machine.options.pools ? 1 : 0;
      return cudaSuccess;
    default:
      return call.machine.violate("cudaDeviceGetAttribute: unexpected attribute", cudaErrorInvalidValue);
  }
}

// Works without a driver, too.
cudaError_t cudaDriverGetVersion(int* version) {
  const std::lock_guard lock(Machine::instance().mutex);
  *version = Machine::instance().driver_version;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  LOCKSTEP_CALL("cudaDeviceGetPCIBusId", false);
  if (device < 0 || device >= call.machine.options.devices) {
    return cudaErrorInvalidDevice;
  }
  std::snprintf(text, static_cast<std::size_t>(length), "0000:%02X:00.0", 0x3a + device);
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  Call call("cudaGetDevice", false);
  if (!call.refused()) {
    *device = thread_state().current();
  }
  return call.status;
}

cudaError_t cudaSetDevice(int device) {
  LOCKSTEP_CALL("cudaSetDevice", false);
  if (device < 0 || device >= call.machine.options.devices) {
    return call.machine.fail(cudaErrorInvalidDevice);
  }
  auto& thread = thread_state();
  thread.device = device;
  const cudaError_t status = call.machine.make_context(device);
  if (status == cudaSuccess && thread.contexts.empty()) {
    thread.contexts.push_back(device);
  } else if (status == cudaSuccess) {
    thread.contexts.back() = device;
  }
  return status;
}

// Creates the device's context, but does not make it current.
cudaError_t cudaInitDevice(int device, unsigned int /*device_flags*/, unsigned int flags) {
  LOCKSTEP_CALL("cudaInitDevice", false);
  if (device < 0 || device >= call.machine.options.devices || flags != 0) {
    return call.machine.fail(cudaErrorInvalidDevice);
  }
  return call.machine.make_context(device);
}

cudaError_t cudaGetLastError() {
  const std::lock_guard lock(Machine::instance().mutex);
  return std::exchange(thread_state().last_error, cudaSuccess);
}

const char* cudaGetErrorName(cudaError_t error) {
#define LOCKSTEP_NAMED(name) \
  { name, #name }
  static const std::map<cudaError_t, const char*> names{LOCKSTEP_NAMED(cudaSuccess),
                                                        LOCKSTEP_NAMED(cudaErrorInvalidValue),
                                                        LOCKSTEP_NAMED(cudaErrorMemoryAllocation),
                                                        LOCKSTEP_NAMED(cudaErrorInsufficientDriver),
                                                        LOCKSTEP_NAMED(cudaErrorNoDevice),
                                                        LOCKSTEP_NAMED(cudaErrorInvalidDevice),
                                                        LOCKSTEP_NAMED(cudaErrorInvalidResourceHandle),
                                                        LOCKSTEP_NAMED(cudaErrorDevicesUnavailable),
                                                        LOCKSTEP_NAMED(cudaErrorNotReady),
                                                        LOCKSTEP_NAMED(cudaErrorIllegalAddress),
                                                        LOCKSTEP_NAMED(cudaErrorLaunchFailure),
                                                        LOCKSTEP_NAMED(cudaErrorSystemDriverMismatch),
                                                        LOCKSTEP_NAMED(cudaErrorStreamCaptureUnsupported),
                                                        LOCKSTEP_NAMED(cudaErrorStreamCaptureInvalidated),
                                                        LOCKSTEP_NAMED(cudaErrorStreamCaptureMerge),
                                                        LOCKSTEP_NAMED(cudaErrorStreamCaptureUnmatched),
                                                        LOCKSTEP_NAMED(cudaErrorStreamCaptureUnjoined),
                                                        LOCKSTEP_NAMED(cudaErrorStreamCaptureIsolation),
                                                        LOCKSTEP_NAMED(cudaErrorCapturedEvent)};
#undef LOCKSTEP_NAMED
  const auto found = names.find(error);
  return found == names.end() ? "cudaErrorUnknown" : found->second;
}

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : "text of the stand-in";
}

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  Call call("cudaMalloc");
  return call.refused() ? call.status : call.machine.allocate(pointer, bytes, false, thread_state().current());
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t* handle, const cudaMemPoolProps* properties) {
  LOCKSTEP_CALL("cudaMemPoolCreate");
  Machine& machine = call.machine;
  const int device = properties->location.id;
  if (properties->allocType != cudaMemAllocationTypePinned || properties->location.type != cudaMemLocationTypeDevice ||
      device < 0 || device >= machine.options.devices || !machine.options.pools) {
    return machine.violate("cudaMemPoolCreate: not a pool of a device that has pools", cudaErrorInvalidValue);
  }
  auto pool = std::make_unique<Pool>();
  pool->device = device;
  *handle = reinterpret_cast<cudaMemPool_t>(pool.get());
  machine.pools.emplace(pool.get(), std::move(pool));
  return cudaSuccess;
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t handle) {
  Call call("cudaMemPoolDestroy");
  Pool* pool = call.machine.pool_of(handle);
  if (pool == nullptr) {
    return call.machine.violate("cudaMemPoolDestroy: not a pool", cudaErrorInvalidValue);
  }
  pool->destroyed = true;
  call.machine.trim(*pool, 0);
  return call.status;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t handle, cudaMemPoolAttr attribute, void* value) {
  LOCKSTEP_CALL("cudaMemPoolSetAttribute");
  Pool* pool = call.machine.pool_of(handle);
  if (pool == nullptr || attribute != cudaMemPoolAttrReleaseThreshold) {
    return call.machine.violate("cudaMemPoolSetAttribute: not a pool, or an unexpected attribute",
                                cudaErrorInvalidValue);
  }
  pool->threshold = *static_cast<const std::uint64_t*>(value);
  return cudaSuccess;
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t handle, cudaMemPoolAttr attribute, void* value) {
  LOCKSTEP_CALL("cudaMemPoolGetAttribute");
  const Pool* pool = call.machine.pool_of(handle);
  if (pool == nullptr || attribute != cudaMemPoolAttrReservedMemCurrent) {
    return call.machine.violate("cudaMemPoolGetAttribute: not a pool, or an unexpected attribute",
                                cudaErrorInvalidValue);
  }
  *static_cast<std::uint64_t*>(value) = pool->reserved;
  return cudaSuccess;
}

cudaError_t cudaMemPoolGetAccess(cudaMemAccessFlags* flags, cudaMemPool_t handle, cudaMemLocation* location) {
  LOCKSTEP_CALL("cudaMemPoolGetAccess");
  const Pool* pool = call.machine.pool_of(handle);
  if (pool == nullptr || location->type != cudaMemLocationTypeDevice) {
    return call.machine.violate("cudaMemPoolGetAccess: not a pool, or not a device", cudaErrorInvalidValue);
  }
  *flags = pool->device == location->id || pool->readers.contains(location->id) ? cudaMemAccessFlagsProtReadWrite
                                                                                : cudaMemAccessFlagsProtNone;
  return cudaSuccess;
}

cudaError_t cudaMemPoolSetAccess(cudaMemPool_t handle, const cudaMemAccessDesc* accesses, size_t count) {
  LOCKSTEP_CALL("cudaMemPoolSetAccess");
  Machine& machine = call.machine;
  Pool* pool = machine.pool_of(handle);
  const int reader = accesses->location.id;
  if (pool == nullptr || count != 1 || accesses->location.type != cudaMemLocationTypeDevice || reader < 0 ||
      reader >= machine.options.devices || accesses->flags != cudaMemAccessFlagsProtReadWrite) {
    return machine.violate("cudaMemPoolSetAccess: not a pool, or not access of a device", cudaErrorInvalidValue);
  }
  if (reader != pool->device && !machine.options.peer_access) {
    return machine.violate("cudaMemPoolSetAccess: these devices have no peer access", cudaErrorInvalidDevice);
  }
  pool->readers.insert(reader);
  return cudaSuccess;
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t handle, size_t keep) {
  LOCKSTEP_CALL("cudaMemPoolTrimTo");
  Pool* pool = call.machine.pool_of(handle);
  if (pool == nullptr) {
    return call.machine.violate("cudaMemPoolTrimTo: not a pool", cudaErrorInvalidValue);
  }
  call.machine.trim(*pool, keep);
  return cudaSuccess;
}

cudaError_t cudaMallocFromPoolAsync(void** pointer, size_t bytes, cudaMemPool_t handle, cudaStream_t stream) {
  LOCKSTEP_CALL("cudaMallocFromPoolAsync");
  Machine& machine = call.machine;
  Pool* pool = machine.pool_of(handle);
  Queue* queue = machine.queue_of(stream);
  if (pool == nullptr || queue == nullptr || queue->device != pool->device) {
    return machine.violate("cudaMallocFromPoolAsync: pool and stream must exist and be of one device",
                           cudaErrorInvalidValue);
  }
  if (const cudaError_t status = machine.allocate(pointer, bytes, false, pool->device, pool); status != cudaSuccess) {
    return status;
  }
  const auto given = std::make_shared<Ticket>();
  machine.find(*pointer)->given = given;
  machine.enqueue(*queue, {.name = "cudaMallocFromPoolAsync", .completes = given});
  return cudaSuccess;
}

cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
  Call call("cudaFreeAsync");
  Machine& machine = call.machine;
  Block* block = machine.find(pointer);
  Queue* queue = machine.queue_of(stream);
  if (block == nullptr || block->data != pointer || block->pool == nullptr || block->freed || block->free_queued ||
      queue == nullptr || queue->device != block->device) {
    return machine.violate("cudaFreeAsync: not memory of a pool, freed before, or not a stream of its device",
                           cudaErrorInvalidValue);
  }
  block->free_queued = true;
  machine.enqueue(*queue,
                  {.name = "cudaFreeAsync", .run = [&machine, block] { machine.retire("cudaFreeAsync", *block); }});
  return call.status;
}

cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  Call call("cudaMallocHost");
  return call.refused() ? call.status : call.machine.allocate(pointer, bytes, true, thread_state().current());
}

cudaError_t cudaFree(void* pointer) {
  Call call("cudaFree");
  return call.forbidden() ? call.status : first_error(call.status, call.machine.release(pointer, false));
}

cudaError_t cudaFreeHost(void* pointer) {
  Call call("cudaFreeHost");
  return call.forbidden() ? call.status : first_error(call.status, call.machine.release(pointer, true));
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  Call call("cudaMemGetInfo");
  if (!call.refused()) {
    *total = call.machine.options.bytes_per_device;
    *free = call.machine.free_bytes(thread_state().current());
  }
  return call.status;
}

cudaError_t cudaMemcpyAsync(void* dst, const void* src, size_t count, cudaMemcpyKind kind, cudaStream_t stream) {
  Call call("cudaMemcpyAsync");
  return call.refused() ? call.status : copy_rows(call, "cudaMemcpyAsync", dst, src, {.width = count}, kind, stream);
}

cudaError_t cudaMemcpy2DAsync(void* dst, size_t dst_pitch, const void* src, size_t src_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  LOCKSTEP_CALL("cudaMemcpy2DAsync");
  const Rows rows{.width = width, .height = height, .dst_pitch = dst_pitch, .src_pitch = src_pitch};
  const cudaError_t status = check_pitches(call.machine, "cudaMemcpy2DAsync", rows);
  return status != cudaSuccess ? status : copy_rows(call, "cudaMemcpy2DAsync", dst, src, rows, kind, stream);
}

cudaError_t cudaMemcpy3DAsync(const cudaMemcpy3DParms* p, cudaStream_t stream) {
  LOCKSTEP_CALL("cudaMemcpy3DAsync");
  const Rows rows = rows_of(p->extent, p->dstPtr, p->srcPtr);
  const cudaError_t status = check_pitches(call.machine, "cudaMemcpy3DAsync", rows);
  return status != cudaSuccess
             ? status
             : copy_rows(call, "cudaMemcpy3DAsync", p->dstPtr.ptr, p->srcPtr.ptr, rows, p->kind, stream);
}

cudaError_t cudaMemcpyPeerAsync(void* dst, int dst_device, const void* src, int src_device, size_t count,
                                cudaStream_t stream) {
  Call call("cudaMemcpyPeerAsync");
  return call.refused()
             ? call.status
             : copy_between(call, "cudaMemcpyPeerAsync", dst, dst_device, src, src_device, {.width = count}, stream);
}

cudaError_t cudaMemcpy3DPeerAsync(const cudaMemcpy3DPeerParms* p, cudaStream_t stream) {
  LOCKSTEP_CALL("cudaMemcpy3DPeerAsync");
  const Rows rows = rows_of(p->extent, p->dstPtr, p->srcPtr);
  const cudaError_t status = check_pitches(call.machine, "cudaMemcpy3DPeerAsync", rows);
  return status != cudaSuccess ? status
                               : copy_between(call, "cudaMemcpy3DPeerAsync", p->dstPtr.ptr, p->dstDevice, p->srcPtr.ptr,
                                              p->srcDevice, rows, stream);
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  LOCKSTEP_CALL("cudaPointerGetAttributes");
  const Block* block = call.machine.find(pointer);
  const bool known = block != nullptr && !block->freed;
  *attributes = {};
  attributes->type = !known ? cudaMemoryTypeUnregistered : block->pinned ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
  attributes->device = known ? block->device : -1;
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  LOCKSTEP_CALL("cudaDeviceCanAccessPeer", false);
  if (device < 0 || device >= call.machine.options.devices || peer < 0 || peer >= call.machine.options.devices) {
    return call.machine.fail(cudaErrorInvalidDevice);
  }
  *can = device != peer && call.machine.options.peer_access ? 1 : 0;
  return cudaSuccess;
}

// Creates the peer's context, as CUDA does.
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int /*flags*/) {
  LOCKSTEP_CALL("cudaDeviceEnablePeerAccess");
  Machine& machine = call.machine;
  const int device = thread_state().current();
  if (peer == device || peer < 0 || peer >= machine.options.devices || !machine.options.peer_access) {
    return machine.violate("cudaDeviceEnablePeerAccess: these devices have none", cudaErrorPeerAccessUnsupported);
  }
  machine.contexts.insert(peer);
  return machine.peers.emplace(device, peer).second ? cudaSuccess : machine.fail(cudaErrorPeerAccessAlreadyEnabled);
}

cudaError_t cudaMemsetAsync(void* dst, int value, size_t count, cudaStream_t stream) {
  LOCKSTEP_CALL("cudaMemsetAsync");
  Machine& machine = call.machine;
  Queue* queue = machine.queue_of(stream);
  if (queue == nullptr || queue->device != thread_state().current()) {
    return machine.violate("cudaMemsetAsync: not a stream of the current device", cudaErrorInvalidResourceHandle);
  }
  const cudaError_t status = machine.check_device("cudaMemsetAsync", dst, count, queue->device);
  return status != cudaSuccess
             ? status
             : machine.enqueue(*queue, {.name = "cudaMemsetAsync",
                                        .run = [&machine, dst, value, count] { machine.set(dst, value, count); },
                                        .uses = {{bytes_of(dst), count}}});
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  Call call("cudaDeviceGetStreamPriorityRange");
  if (!call.refused()) {
    *least = 0;
    *greatest = -5;
  }
  return call.status;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int flags, int priority) {
  LOCKSTEP_CALL("cudaStreamCreateWithPriority");
  Machine& machine = call.machine;
  if (flags != cudaStreamNonBlocking) {
    return machine.violate("cudaStreamCreateWithPriority: the stream would synchronise with the default stream",
                           cudaErrorInvalidValue);
  }
  if (priority > 0 || priority < -5) {
    return machine.violate("cudaStreamCreateWithPriority: priority out of range", cudaErrorInvalidValue);
  }
  auto queue = std::make_unique<Queue>();
  queue->device = thread_state().current();
  queue->number = static_cast<int>(machine.queues.size()) + 1;
  queue->priority = priority;
  queue->turn = static_cast<int>(machine.random() % 1000);
  *stream = reinterpret_cast<cudaStream_t>(queue.get());
  machine.queues.emplace(queue.get(), std::move(queue));
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Call call("cudaStreamDestroy");
  Queue* queue = call.machine.queue_of(stream);
  if (queue == nullptr || queue->legacy) {
    return call.machine.violate("cudaStreamDestroy: not a stream", cudaErrorInvalidResourceHandle);
  }
  if (queue->capture != nullptr) {
    call.machine.violations.emplace_back("cudaStreamDestroy: a graph is being captured from the stream");
  }
  queue->alive = false;
  return call.status;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  Call call("cudaStreamSynchronize");
  Queue* queue = call.machine.queue_of(stream);
  if (queue == nullptr) {
    return call.machine.violate("cudaStreamSynchronize: not a stream", cudaErrorInvalidResourceHandle);
  }
  if (call.forbidden()) {
    return call.status;
  }
  return first_error(call.status, call.machine.run_until(call.lock, queue, [&] { return queue->work.empty(); }));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int /*flags*/) {
  LOCKSTEP_CALL("cudaStreamWaitEvent");
  Queue* queue = call.machine.queue_of(stream);
  const EventObject* object = call.machine.event_of(event);
  if (queue == nullptr || object == nullptr) {
    return call.machine.violate("cudaStreamWaitEvent: not a stream or not an event", cudaErrorInvalidResourceHandle);
  }
  if (is_forgotten(call.machine, "cudaStreamWaitEvent")) {
    return cudaSuccess;
  }
  if (object->capture != nullptr || queue->capture != nullptr) {
    return call.machine.wait_in_capture(*queue, *object);
  }
  if (object->ticket != nullptr) {
    call.machine.enqueue(*queue, {.name = "cudaStreamWaitEvent", .awaits = object->ticket});
  }
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  LOCKSTEP_CALL("cudaLaunchHostFunc");
  Queue* queue = call.machine.queue_of(stream);
  if (queue == nullptr) {
    return call.machine.violate("cudaLaunchHostFunc: not a stream", cudaErrorInvalidResourceHandle);
  }
  return call.machine.enqueue(*queue, {.name = "cudaLaunchHostFunc", .function = function, .data = data});
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  LOCKSTEP_CALL("cudaEventCreateWithFlags");
  auto object = std::make_unique<EventObject>();
  object->device = thread_state().current();
  object->timing = (flags & cudaEventDisableTiming) == 0;
  *event = reinterpret_cast<cudaEvent_t>(object.get());
  call.machine.events.emplace(object.get(), std::move(object));
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  Call call("cudaEventDestroy");
  if (call.machine.events.erase(event) == 0) {
    return call.machine.violate("cudaEventDestroy: not an event", cudaErrorInvalidResourceHandle);
  }
  return call.status;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  LOCKSTEP_CALL("cudaEventRecord");
  Queue* queue = call.machine.queue_of(stream);
  EventObject* object = call.machine.event_of(event);
  if (queue == nullptr || object == nullptr || queue->device != object->device) {
    return call.machine.violate("cudaEventRecord: event and stream must exist and be of one device",
                                cudaErrorInvalidResourceHandle);
  }
  object->capture = queue->capture;
  object->after = queue->tail;
  if (queue->capture != nullptr) {  // the event now stands for a node of the graph
    object->ticket = nullptr;
    return queue->capture->spoilt ? call.machine.fail(cudaErrorStreamCaptureInvalidated) : cudaSuccess;
  }
  object->ticket = std::make_shared<Ticket>();
  return call.machine.enqueue(*queue, {.name = "cudaEventRecord", .completes = object->ticket});
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  LOCKSTEP_CALL("cudaEventQuery");
  const EventObject* object = call.machine.event_of(event);
  if (object == nullptr) {
    return call.machine.violate("cudaEventQuery: not an event", cudaErrorInvalidResourceHandle);
  }
  if (object->capture != nullptr) {
    return call.machine.violate("cudaEventQuery: the event was recorded in a graph", cudaErrorCapturedEvent);
  }
  const std::shared_ptr<Ticket> ticket = object->ticket;
  if (ticket == nullptr || ticket->done) {
    return cudaSuccess;
  }
  call.machine.step_once(ticket->queue);  // makes progress, so that a caller that polls does not poll forever
  return ticket->done ? cudaSuccess : call.machine.fail(cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  Call call("cudaEventSynchronize");
  const EventObject* object = call.machine.event_of(event);
  if (object == nullptr) {
    return call.machine.violate("cudaEventSynchronize: not an event", cudaErrorInvalidResourceHandle);
  }
  if (call.forbidden()) {
    return call.status;
  }
  if (object->capture != nullptr) {
    return call.machine.violate("cudaEventSynchronize: the event was recorded in a graph", cudaErrorCapturedEvent);
  }
  const std::shared_ptr<Ticket> ticket = object->ticket;
  if (ticket == nullptr || is_forgotten(call.machine, "cudaEventSynchronize")) {
    return call.status;
  }
  return first_error(call.status, call.machine.run_until(call.lock, ticket->queue, [&] { return ticket->done; }));
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  LOCKSTEP_CALL("cudaEventElapsedTime");
  const EventObject* from = call.machine.event_of(start);
  const EventObject* to = call.machine.event_of(end);
  if (from == nullptr || to == nullptr || !from->timing || !to->timing || from->ticket == nullptr ||
      to->ticket == nullptr || from->device != to->device) {
    return call.machine.violate("cudaEventElapsedTime: both must be recorded with timing on one device",
                                cudaErrorInvalidResourceHandle);
  }
  if (!from->ticket->done || !to->ticket->done) {
    return call.machine.fail(cudaErrorNotReady);
  }
  if (to->ticket->time < from->ticket->time) {
    return call.machine.violate("cudaEventElapsedTime: the end came before the start, of which CUDA says nothing",
                                cudaErrorInvalidValue);
  }
  *milliseconds = static_cast<float>(to->ticket->time) - static_cast<float>(from->ticket->time);
  return cudaSuccess;
}

}  // extern "C"
