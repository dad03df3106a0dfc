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

/// Reason why a call made its caller wait.
enum class SyncReason : std::uint8_t {
  requested,   ///< Stream::synchronize(), Context::synchronize()
  host_copy,   ///< a copy between a GPU and host memory that is pageable, or that the copy converts or gathers
  host_data,   ///< the call returns data on the host, or takes it piece by piece: printing, reading, factories on a GPU
  event,       ///< an inline stream waits for an event by blocking
  queue_full,  ///< the queue of a host worker is full
  allocation,  ///< cudaMalloc, cudaMallocHost: may wait for the whole device
  release,     ///< memory is freed after the work that may use it has ended
  destruction,  ///< a stream with unfinished work is destroyed
};
[[nodiscard]] std::string_view name_of(SyncReason reason);  ///< "host copy", "queue full", ...

/// One wait. `call` is the outermost call of the library that waited: Tensor::rand for a copy inside of Tensor::rand.
struct Synchronisation {
  Device device;          ///< the stream's device
  std::string_view call;  ///< a literal: "copy", "CudaMemoryResource::allocate", ...
  SyncReason reason;
  std::size_t bytes;  ///< bytes copied, allocated or freed; 0: no such number
  double seconds;     ///< from entering to leaving the call
};
/// "copy on cuda:0 waited 0.000123 s: host copy, 4096 bytes"
std::ostream& operator<<(std::ostream& out, const Synchronisation& wait);

/// Called on the thread that waited, at the end of the wait, also from destructors: it must not throw (std::terminate).
/// The objects that it refers to must outlive the stream of on_synchronisation().
using SyncReport = std::function<void(const Synchronisation&)>;

namespace detail {

struct SyncLog {
  SyncReport report;          ///< empty: off
  std::atomic<int> depth{0};  ///< number of open scopes
};

}  // namespace detail

/// Used by a call that waits for a stream: reports the wait when the scope ends, if it is the stream's outermost scope.
/// Without a report it costs one test.
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
