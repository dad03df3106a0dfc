#pragma once

#include <lockstep/runtime/stream/stream.hpp>

namespace lockstep {

/// Waits for a stream before the memory that its queued work uses is freed, also when an exception unwinds.
class SyncGuard {
 public:
  explicit SyncGuard(Stream& stream) : stream_(stream) {}
  SyncGuard(const SyncGuard&) = delete;
  SyncGuard& operator=(const SyncGuard&) = delete;
  ~SyncGuard() {
    try {
      stream_.synchronize();
    } catch (...) {  // the failure was already reported when the stack unwinds
    }
  }

 private:
  Stream& stream_;
};

}  // namespace lockstep
