#include <lockstep/nn/plan/recompute.hpp>

namespace lockstep::nn {

std::string_view name_of(Recompute recompute) {
  switch (recompute) {
    case Recompute::cheap:
      return "cheap";
    case Recompute::blocks:
      return "blocks";
    case Recompute::off:
      break;
  }
  return "off";
}

}  // namespace lockstep::nn
