#include <lockstep/nn/layers/axis_sizes.hpp>

#include <ostream>

namespace lockstep::nn {

std::ostream& operator<<(std::ostream& out, const AxisSizes& sizes) {
  if (sizes.all(sizes[0])) {
    return out << sizes[0];
  }
  out << sizes[0];
  for (int i = 1; i < sizes.entries() && i < AxisSizes::kMostAxes; ++i) {
    out << 'x' << sizes[i];
  }
  return out;
}

}  // namespace lockstep::nn
