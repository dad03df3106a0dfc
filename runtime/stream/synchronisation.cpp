#include <lockstep/runtime/stream/synchronisation.hpp>

#include <ostream>

#include <lockstep/runtime/stream/stream.hpp>

namespace lockstep {

std::string_view name_of(SyncReason reason) {
  static constexpr std::string_view kNames[] = {"requested",  "host copy",  "host data", "event",
                                                "queue full", "allocation", "release",   "destruction"};
  return kNames[static_cast<std::size_t>(reason)];
}

std::ostream& operator<<(std::ostream& out, const Synchronisation& wait) {
  out << wait.call << " on " << wait.device << " waited " << wait.seconds << " s: " << name_of(wait.reason);
  return wait.bytes > 0 ? out << ", " << wait.bytes << " bytes" : out;
}

SyncScope::SyncScope(Stream& stream, std::string_view call, SyncReason reason, std::size_t bytes) noexcept
    : log_(stream.sync_log()) {
  if (log_ != nullptr && stream.is_inline()) {
    log_ = nullptr;  // an inline stream never waits, so nothing is reported
  }
  if (log_ != nullptr) {
    begin(stream.device(), call, reason, bytes);
  }
}

void SyncScope::begin(Device device, std::string_view call, SyncReason reason, std::size_t bytes) noexcept {
  wait_ = {.device = device, .call = call, .reason = reason, .bytes = bytes, .seconds = 0};
  begin_ = std::chrono::steady_clock::now();
  ++log_->depth;
}

void SyncScope::end() noexcept {
  if (--log_->depth == 0 && log_->report) {
    wait_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
    log_->report(wait_);
  }
}

}  // namespace lockstep
