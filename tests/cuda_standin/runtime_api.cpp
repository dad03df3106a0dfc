// The symbols of the CUDA runtime library that runtime/ uses.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "machine.hpp"

using lockstep::standin::Block;
using lockstep::standin::EventObject;
using lockstep::standin::Machine;
using lockstep::standin::Queue;
using lockstep::standin::thread_state;
using lockstep::standin::Ticket;
using lockstep::standin::Work;

namespace {

struct Call {
  explicit Call(const char* name, bool makes_context = true)
      : machine(Machine::instance()), lock(machine.mutex), status(machine.enter(name, makes_context)) {}
  Machine& machine;
  std::unique_lock<std::mutex> lock;
  cudaError_t status;  ///< injected, sticky or driver error
  [[nodiscard]] bool refused() const { return status != cudaSuccess; }
};

std::byte* bytes_of(void* pointer) {
  return static_cast<std::byte*>(pointer);
}
const std::byte* bytes_of(const void* pointer) {
  return static_cast<const std::byte*>(pointer);
}

/// A call that gives back or waits does so even when it reports an error (of earlier work).
cudaError_t first_error(cudaError_t injected, cudaError_t own) {
  return injected != cudaSuccess ? injected : own;
}

cudaError_t copy_host_to_device(Call& call, void* dst, const void* src, std::size_t count, Queue& queue) {
  Machine& machine = call.machine;
  bool pinned = false;
  cudaError_t status = machine.check_device("cudaMemcpyAsync", dst, count, queue.device);
  if (status == cudaSuccess) {
    status = machine.check_host("cudaMemcpyAsync", src, count, pinned);
  }
  if (status != cudaSuccess) {
    return status;
  }
  if (pinned) {
    machine.enqueue(queue, {.name = "cudaMemcpyAsync",
                            .run = [&machine, dst, src, count] { machine.move(dst, src, count); },
                            .uses = {{bytes_of(dst), count}, {bytes_of(src), count}}});
    return cudaSuccess;
  }
  // From pageable memory: the stream is waited for, then the data is staged; only the transfer is left for later.
  status = machine.run_until(call.lock, &queue, [&] { return queue.work.empty(); });
  if (status != cudaSuccess) {
    return status;
  }
  std::vector<std::byte> staged(bytes_of(src), bytes_of(src) + count);
  machine.enqueue(
      queue, {.name = "cudaMemcpyAsync",
              .run = [&machine, dst, staged = std::move(staged)] { machine.move(dst, staged.data(), staged.size()); },
              .uses = {{bytes_of(dst), count}}});
  return cudaSuccess;
}

cudaError_t copy_device_to_host(Call& call, void* dst, const void* src, std::size_t count, Queue& queue) {
  Machine& machine = call.machine;
  bool pinned = false;
  cudaError_t status = machine.check_device("cudaMemcpyAsync", src, count, queue.device);
  if (status == cudaSuccess) {
    status = machine.check_host("cudaMemcpyAsync", dst, count, pinned);
  }
  if (status != cudaSuccess) {
    return status;
  }
  machine.enqueue(queue, {.name = "cudaMemcpyAsync",
                          .run = [&machine, dst, src, count] { machine.move(dst, src, count); },
                          .uses = {{bytes_of(dst), count}, {bytes_of(src), count}}});
  // To pageable memory: returns when the copy is complete.
  return pinned ? cudaSuccess : machine.run_until(call.lock, &queue, [&] { return queue.work.empty(); });
}

cudaError_t copy_device_to_device(Machine& machine, const char* name, void* dst, int dst_device, const void* src,
                                  int src_device, std::size_t count, Queue& queue) {
  cudaError_t status = machine.check_device(name, dst, count, dst_device);
  if (status == cudaSuccess) {
    status = machine.check_device(name, src, count, src_device);
  }
  if (status == cudaSuccess) {
    machine.enqueue(queue, {.name = name,
                            .run = [&machine, dst, src, count] { machine.move(dst, src, count); },
                            .uses = {{bytes_of(dst), count}, {bytes_of(src), count}}});
  }
  return status;
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

// UUID: 16 bytes of the device's index; PCI id: the index as bus.
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  Call call("cudaGetDeviceProperties", false);
  if (call.refused()) {
    return call.status;
  }
  if (device < 0 || device >= call.machine.options.devices) {
    return cudaErrorInvalidDevice;
  }
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "Stand-in %d", device);
  std::memset(properties->uuid.bytes, device, sizeof properties->uuid.bytes);
  properties->totalGlobalMem = call.machine.options.bytes_per_device;
  properties->major = 9;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  Call call("cudaDeviceGetPCIBusId", false);
  if (call.refused()) {
    return call.status;
  }
  if (device < 0 || device >= call.machine.options.devices) {
    return cudaErrorInvalidDevice;
  }
  std::snprintf(text, static_cast<std::size_t>(length), "0000:%02x:00.0", device);
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  Call call("cudaGetDevice", false);
  if (!call.refused()) {
    *device = thread_state().device;
  }
  return call.status;
}

cudaError_t cudaSetDevice(int device) {
  Call call("cudaSetDevice", false);
  if (call.refused()) {
    return call.status;
  }
  if (device < 0 || device >= call.machine.options.devices) {
    return call.machine.fail(cudaErrorInvalidDevice);
  }
  thread_state().device = device;
  call.machine.contexts.insert(device);
  return cudaSuccess;
}

cudaError_t cudaGetLastError() {
  const std::lock_guard lock(Machine::instance().mutex);
  return std::exchange(thread_state().last_error, cudaSuccess);
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInsufficientDriver:
      return "cudaErrorInsufficientDriver";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle:
      return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    case cudaErrorLaunchFailure:
      return "cudaErrorLaunchFailure";
    case cudaErrorSystemDriverMismatch:
      return "cudaErrorSystemDriverMismatch";
    default:
      return "cudaErrorUnknown";
  }
}

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : "text of the stand-in";
}

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  Call call("cudaMalloc");
  return call.refused() ? call.status : call.machine.allocate(pointer, bytes, false, thread_state().device);
}

cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  Call call("cudaMallocHost");
  return call.refused() ? call.status : call.machine.allocate(pointer, bytes, true, thread_state().device);
}

cudaError_t cudaFree(void* pointer) {
  Call call("cudaFree");
  return first_error(call.status, call.machine.release(pointer, false));
}

cudaError_t cudaFreeHost(void* pointer) {
  Call call("cudaFreeHost");
  return first_error(call.status, call.machine.release(pointer, true));
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  Call call("cudaMemGetInfo");
  if (!call.refused()) {
    *total = call.machine.options.bytes_per_device;
    *free = call.machine.free_bytes(thread_state().device);
  }
  return call.status;
}

cudaError_t cudaMemcpyAsync(void* dst, const void* src, size_t count, cudaMemcpyKind kind, cudaStream_t stream) {
  Call call("cudaMemcpyAsync");
  if (call.refused()) {
    return call.status;
  }
  Queue* queue = call.machine.queue_of(stream);
  if (queue == nullptr) {
    return call.machine.violate("cudaMemcpyAsync: not a stream", cudaErrorInvalidResourceHandle);
  }
  switch (kind) {
    case cudaMemcpyHostToDevice:
      return copy_host_to_device(call, dst, src, count, *queue);
    case cudaMemcpyDeviceToHost:
      return copy_device_to_host(call, dst, src, count, *queue);
    case cudaMemcpyDeviceToDevice:
      return copy_device_to_device(call.machine, "cudaMemcpyAsync", dst, queue->device, src, queue->device, count,
                                   *queue);
    default:
      return call.machine.violate("cudaMemcpyAsync: unexpected kind", cudaErrorInvalidValue);
  }
}

cudaError_t cudaMemcpyPeerAsync(void* dst, int dst_device, const void* src, int src_device, size_t count,
                                cudaStream_t stream) {
  Call call("cudaMemcpyPeerAsync");
  if (call.refused()) {
    return call.status;
  }
  Queue* queue = call.machine.queue_of(stream);
  if (queue == nullptr || (queue->device != dst_device && queue->device != src_device)) {
    return call.machine.violate("cudaMemcpyPeerAsync: not a stream of one of the two devices",
                                cudaErrorInvalidResourceHandle);
  }
  return copy_device_to_device(call.machine, "cudaMemcpyPeerAsync", dst, dst_device, src, src_device, count, *queue);
}

cudaError_t cudaMemsetAsync(void* dst, int value, size_t count, cudaStream_t stream) {
  Call call("cudaMemsetAsync");
  if (call.refused()) {
    return call.status;
  }
  Machine& machine = call.machine;
  Queue* queue = machine.queue_of(stream);
  if (queue == nullptr || queue->device != thread_state().device) {
    return machine.violate("cudaMemsetAsync: not a stream of the current device", cudaErrorInvalidResourceHandle);
  }
  const cudaError_t status = machine.check_device("cudaMemsetAsync", dst, count, queue->device);
  if (status == cudaSuccess) {
    machine.enqueue(*queue, {.name = "cudaMemsetAsync",
                             .run = [&machine, dst, value, count] { machine.set(dst, value, count); },
                             .uses = {{bytes_of(dst), count}}});
  }
  return status;
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
  Call call("cudaStreamCreateWithPriority");
  if (call.refused()) {
    return call.status;
  }
  Machine& machine = call.machine;
  if (flags != cudaStreamNonBlocking) {
    return machine.violate("cudaStreamCreateWithPriority: the stream would synchronise with the default stream",
                           cudaErrorInvalidValue);
  }
  if (priority > 0 || priority < -5) {
    return machine.violate("cudaStreamCreateWithPriority: priority out of range", cudaErrorInvalidValue);
  }
  auto queue = std::make_unique<Queue>();
  queue->device = thread_state().device;
  queue->number = static_cast<int>(machine.queues.size()) + 1;
  queue->priority = static_cast<int>(machine.random() % 1000);
  *stream = reinterpret_cast<cudaStream_t>(queue.get());
  machine.queues.emplace(queue.get(), std::move(queue));
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Call call("cudaStreamDestroy");
  Queue* queue = call.machine.queue_of(stream);
  if (queue == nullptr) {
    return call.machine.violate("cudaStreamDestroy: not a stream", cudaErrorInvalidResourceHandle);
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
  return first_error(call.status, call.machine.run_until(call.lock, queue, [&] { return queue->work.empty(); }));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int /*flags*/) {
  Call call("cudaStreamWaitEvent");
  if (call.refused()) {
    return call.status;
  }
  Queue* queue = call.machine.queue_of(stream);
  const EventObject* object = call.machine.event_of(event);
  if (queue == nullptr || object == nullptr) {
    return call.machine.violate("cudaStreamWaitEvent: not a stream or not an event", cudaErrorInvalidResourceHandle);
  }
  if (object->ticket != nullptr) {
    call.machine.enqueue(*queue, {.name = "cudaStreamWaitEvent", .awaits = object->ticket});
  }
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  Call call("cudaLaunchHostFunc");
  if (call.refused()) {
    return call.status;
  }
  Queue* queue = call.machine.queue_of(stream);
  if (queue == nullptr) {
    return call.machine.violate("cudaLaunchHostFunc: not a stream", cudaErrorInvalidResourceHandle);
  }
  call.machine.enqueue(*queue, {.name = "cudaLaunchHostFunc", .function = function, .data = data});
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  Call call("cudaEventCreateWithFlags");
  if (call.refused()) {
    return call.status;
  }
  auto object = std::make_unique<EventObject>();
  object->device = thread_state().device;
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
  Call call("cudaEventRecord");
  if (call.refused()) {
    return call.status;
  }
  Queue* queue = call.machine.queue_of(stream);
  EventObject* object = call.machine.event_of(event);
  if (queue == nullptr || object == nullptr || queue->device != object->device) {
    return call.machine.violate("cudaEventRecord: event and stream must exist and be of one device",
                                cudaErrorInvalidResourceHandle);
  }
  object->ticket = std::make_shared<Ticket>();
  call.machine.enqueue(*queue, {.name = "cudaEventRecord", .completes = object->ticket});
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  Call call("cudaEventQuery", false);
  if (call.refused()) {
    return call.status;
  }
  const EventObject* object = call.machine.event_of(event);
  if (object == nullptr) {
    return call.machine.violate("cudaEventQuery: not an event", cudaErrorInvalidResourceHandle);
  }
  const std::shared_ptr<Ticket> ticket = object->ticket;
  if (ticket == nullptr || ticket->done) {
    return cudaSuccess;
  }
  call.machine.step_once(ticket->queue);  // a caller that polls must come to an end
  return ticket->done ? cudaSuccess : call.machine.fail(cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  Call call("cudaEventSynchronize", false);
  const EventObject* object = call.machine.event_of(event);
  if (object == nullptr) {
    return call.machine.violate("cudaEventSynchronize: not an event", cudaErrorInvalidResourceHandle);
  }
  const std::shared_ptr<Ticket> ticket = object->ticket;
  if (ticket == nullptr) {
    return call.status;
  }
  return first_error(call.status, call.machine.run_until(call.lock, ticket->queue, [&] { return ticket->done; }));
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  Call call("cudaEventElapsedTime");
  if (call.refused()) {
    return call.status;
  }
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
  *milliseconds = static_cast<float>(to->ticket->time) - static_cast<float>(from->ticket->time);
  return cudaSuccess;
}

}  // extern "C"
