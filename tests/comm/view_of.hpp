#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::comm {

/// Returns the vector as a 1-D host tensor.
template <class T>
TensorView view_of(std::vector<T>& values) {
  return {std::span<T>(values), Shape{static_cast<std::int64_t>(values.size())}};
}

}  // namespace lockstep::comm
