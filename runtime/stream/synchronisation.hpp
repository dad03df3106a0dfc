#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <string_view>

#include <lockstep/runtime/machine/device.hpp>

namespace lockstep {

class Stream;

/// Reasons why a call made its caller wait.
enum class SyncReason : std::uint8_t {
  requested,    ///< the caller called Stream::synchronize() or Context::synchronize()
  host_copy,    ///< copy between GPU and host: of pageable memory, with conversion, or of scattered elements
  host_data,    ///< the call returns or reads data on the host: printing, reading, factories on a GPU
  event,        ///< an inline stream waits for an event by blocking
  queue_full,   ///< the queue of a host worker is full
  allocation,   ///< cudaMalloc or cudaMallocHost may wait for the whole device
  release,      ///< a call that frees memory first waits for work that may use the memory
  destruction,  ///< a stream with unfinished work is destroyed
};
[[nodiscard]] std::string_view name_of(SyncReason reason);  ///< returns "host copy", "queue full", ...

/// One wait. `call` names the outermost library function that waited: Tensor::rand for a copy inside of Tensor::rand.
struct Synchronisation {
  Device device;          ///< device of the stream
  std::string_view call;  ///< name of the call, a string literal: "copy", "CudaMemoryResource::allocate", ...
  SyncReason reason;
  std::size_t bytes;  ///< bytes copied, allocated or freed; 0 if the call has no such number
  double seconds;     ///< time from entering to leaving the call
};
/// Prints "copy on cuda:0 waited 0.000123 s: host copy, 4096 bytes".
std::ostream& operator<<(std::ostream& out, const Synchronisation& wait);

/// Function that is called at the end of a wait, on the thread that waited. Destructors call the function, too, so it
/// must not throw (std::terminate). Objects that the function uses must outlive the stream on which
/// on_synchronisation() was called.
using SyncReport = std::function<void(const Synchronisation&)>;

namespace detail {

struct SyncLog {
  SyncReport report;          ///< function to call after a wait; empty if reports are off
  std::atomic<int> depth{0};  ///< number of open SyncScopes
};

}  // namespace detail

/// Reports a wait for a stream when the scope ends, unless the scope is inside another scope of the stream. Calls that
/// wait for a stream contain a scope. If no SyncReport is set, a scope costs one test.
class SyncScope {
 public:
  SyncScope(Stream& stream, std::string_view call, SyncReason reason, std::size_t bytes = 0) noexcept;
  SyncScope(detail::SyncLog& log, Device device, std::string_view call, SyncReason reason,
            std::size_t bytes = 0) noexcept
      : log_(log.report ? &log : nullptr) {
    if (log_ != nullptr) {
      begin(device, call, reason, bytes);
    }
  }
  SyncScope(const SyncScope&) = delete;
  SyncScope& operator=(const SyncScope&) = delete;
  ~SyncScope() {
    if (log_ != nullptr) {
      end();
    }
  }

 private:
  void begin(Device device, std::string_view call, SyncReason reason, std::size_t bytes) noexcept;
  void end() noexcept;
  detail::SyncLog* log_;
  Synchronisation wait_;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace lockstep
