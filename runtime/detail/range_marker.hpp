#pragma once

#include <cstdint>
#include <memory>

#include <lockstep/runtime/stream/span_recorder.hpp>

namespace lockstep::detail {

/// Tells a tool that is attached to the process, such as Nsight Systems, where named ranges of the calling thread begin
/// and end. Ranges are nested. No call fails; only add() allocates memory of lockstep.
class RangeMarker {
 public:
  RangeMarker() = default;
  RangeMarker(const RangeMarker&) = delete;
  RangeMarker& operator=(const RangeMarker&) = delete;
  virtual ~RangeMarker() = default;

  /// Registers a name with the tool. Names are numbered from 0.
  virtual void add(const SpanRecorder::Name& name) = 0;
  /// number: the number next to the name; 0: the bytes of the name's bucket, if any.
  virtual void enter(int name, std::int64_t number) noexcept = 0;
  virtual void leave() noexcept = 0;  ///< leaves the range that was entered last
  virtual void mark(int name) noexcept = 0;
};

/// Returns nullptr when no tool is attached, and in a build without NVTX (range_marker_absent.cpp).
[[nodiscard]] std::unique_ptr<RangeMarker> make_range_marker();

}  // namespace lockstep::detail
