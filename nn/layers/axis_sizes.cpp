#include <lockstep/nn/layers/axis_sizes.hpp>

#include <ostream>

#include <lockstep/runtime/base/error.hpp>

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

const char* sample_text(int axes) {
  constexpr std::array<const char*, 3> kTexts{"(T, C)", "(H, W, C)", "(D, H, W, C)"};
  return kTexts.at(static_cast<std::size_t>(axes - 1));
}

void require_axes(const std::string& layer, int axes, std::initializer_list<NamedSizes> options) {
  for (const auto& [name, sizes] : options) {
    require<UsageError>(sizes.fits(axes), layer, ": ", name, " has ", sizes.entries(), " numbers, expected ",
                        axes == 1 ? "1" : concat("1, or ", axes, " for the axes of ", sample_text(axes)));
  }
}

}  // namespace lockstep::nn
