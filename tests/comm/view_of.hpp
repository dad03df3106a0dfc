#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::comm {

/// Returns a view of the values: a tensor of one axis on the host.
template <class T>
TensorView view_of(std::vector<T>& values) {
  return {std::span<T>(values), Shape{static_cast<std::int64_t>(values.size())}};
}

}  // namespace lockstep::comm
