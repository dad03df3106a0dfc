#pragma once

#include <lockstep/runtime/stream/stream.hpp>

namespace lockstep {

/// Waits for a stream before the memory that its queued work uses goes, also when an exception unwinds.
class SyncGuard {
 public:
  explicit SyncGuard(Stream& stream) : stream_(stream) {}
  SyncGuard(const SyncGuard&) = delete;
  SyncGuard& operator=(const SyncGuard&) = delete;
  ~SyncGuard() {
    try {
      stream_.synchronize();
    } catch (...) {  // whoever destroys after a failure knows
    }
  }

 private:
  Stream& stream_;
};

}  // namespace lockstep
