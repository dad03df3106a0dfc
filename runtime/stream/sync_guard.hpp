#pragma once

#include <lockstep/runtime/stream/stream.hpp>

namespace lockstep {

/// Waits for a stream in the destructor, also when an exception unwinds the stack. So the stream's queued work is
/// complete before the memory that it uses is freed.
class SyncGuard {
 public:
  explicit SyncGuard(Stream& stream) : stream_(stream) {}
  SyncGuard(const SyncGuard&) = delete;
  SyncGuard& operator=(const SyncGuard&) = delete;
  ~SyncGuard() {
    try {
      stream_.synchronize();
    } catch (...) {  // drops the failure, because a destructor must not throw while the stack unwinds
    }
  }

 private:
  Stream& stream_;
};

}  // namespace lockstep
