#include <lockstep/nn/plan/recompute.hpp>

#include <lockstep/runtime/base/error.hpp>

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

Recompute parse_recompute(std::string_view name) {
  for (const Recompute recompute : {Recompute::off, Recompute::cheap, Recompute::blocks}) {
    if (name == name_of(recompute)) {
      return recompute;
    }
  }
  throw UsageError(concat("recompute is '", name, "', expected off, cheap or blocks"));
}

}  // namespace lockstep::nn
