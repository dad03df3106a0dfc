#pragma once

#include <lockstep/runtime/stream/stream.hpp>

namespace lockstep::nn {

/// Waits for a stream before the memory that its queued work uses goes, also when an exception unwinds.
class IdleAtEnd {
 public:
  explicit IdleAtEnd(Stream& stream) : stream_(stream) {}
  IdleAtEnd(const IdleAtEnd&) = delete;
  IdleAtEnd& operator=(const IdleAtEnd&) = delete;
  ~IdleAtEnd() {
    try {
      stream_.synchronize();
    } catch (...) {  // whoever destroys after a failure knows
    }
  }

 private:
  Stream& stream_;
};

}  // namespace lockstep::nn
