// Replaces cuda/range_marker.cpp in a build without the NVTX header.
#include <lockstep/runtime/detail/range_marker.hpp>

namespace lockstep::detail {

std::unique_ptr<RangeMarker> make_range_marker() {
  return nullptr;
}

}  // namespace lockstep::detail
