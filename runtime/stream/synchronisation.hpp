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

/// Why a call made its caller wait.
enum class SyncReason : std::uint8_t {
  requested,    ///< Stream::synchronize(), Context::synchronize()
  host_copy,    ///< between a GPU and host memory that is pageable, or converted or gathered on its way
  host_data,    ///< the call returns, or takes in pieces, data on the host: printing, reading, factories on a GPU
  event,        ///< an inline stream has no other way to wait for an event
  queue_full,   ///< the queue of a host worker is full
  allocation,   ///< cudaMalloc, cudaMallocHost: may wait for the whole device
  release,      ///< memory is given back after the work that may use it has ended
  destruction,  ///< a stream with work in it is destroyed
};
[[nodiscard]] std::string_view name_of(SyncReason reason);  ///< "host copy", "queue full", ...

/// One wait. `call` is the outermost call of the library that waited: a copy inside of Tensor::rand is Tensor::rand's.
struct Synchronisation {
  Device device;          ///< of the stream
  std::string_view call;  ///< a literal: "copy", "CudaMemoryResource::allocate", ...
  SyncReason reason;
  std::size_t bytes;  ///< copied, allocated or given back; 0 where there is no such number
  double seconds;     ///< from entering to leaving the call
};
/// "copy on cuda:0 waited 0.000123 s: host copy, 4096 bytes"
std::ostream& operator<<(std::ostream& out, const Synchronisation& wait);

/// Called on the thread that waited, at the end of the wait, also by destructors: it must not throw (std::terminate).
/// The objects that it refers to must outlive the stream that it was given to (Stream::on_synchronisation).
using SyncReport = std::function<void(const Synchronisation&)>;

namespace detail {

struct SyncLog {
  SyncReport report;          ///< empty: off
  std::atomic<int> depth{0};  ///< scopes that are open
};

}  // namespace detail

/// For the author of a call that waits for a stream: reports the wait when the scope ends, if it is the stream's
/// outermost one. Costs one test when no report is set.
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
