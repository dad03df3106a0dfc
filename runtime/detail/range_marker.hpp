#pragma once

#include <cstdint>
#include <memory>

#include <lockstep/runtime/stream/span_recorder.hpp>

namespace lockstep::detail {

/// Tells a tool that is attached to the process, such as Nsight Systems, where named ranges of the calling thread begin
/// and end. Ranges are nested. No function reports an error. Only add() allocates memory, except for memory that the
/// tool itself allocates.
class RangeMarker {
 public:
  RangeMarker() = default;
  RangeMarker(const RangeMarker&) = delete;
  RangeMarker& operator=(const RangeMarker&) = delete;
  virtual ~RangeMarker() = default;

  /// Registers a name with the tool. Names are numbered from 0.
  virtual void add(const SpanRecorder::Name& name) = 0;
  /// Begins a range. The tool shows `number` with the name. If `number` is 0 and the name has a bucket, the tool shows
  /// the bucket's bytes.
  virtual void enter(int name, std::int64_t number) noexcept = 0;
  virtual void leave() noexcept = 0;  ///< ends the range that was entered last
  virtual void mark(int name) noexcept = 0;
};

/// Makes the marker. Returns nullptr if no tool is attached, and in a build without NVTX (range_marker_absent.cpp).
[[nodiscard]] std::unique_ptr<RangeMarker> make_range_marker();

}  // namespace lockstep::detail
