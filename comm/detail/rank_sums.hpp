#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include <lockstep/comm/detail/checks.hpp>

namespace lockstep::comm::detail {

/// Sums n elements over the ranks in rank order, and rounds each addition to T. `at(r)` returns a pointer to rank r's
/// first element. `store(i, sums, count)` takes the sums of elements [i, i + count), and may overwrite these elements
/// in any rank's memory.
template <class T, class At, class Store>
void sum_over_ranks(int size, std::int64_t n, At&& at, Store&& store) {
  constexpr std::int64_t kBlock = 512;
  std::array<T, kBlock> block;
  for (std::int64_t i = 0; i < n; i += kBlock) {
    const std::int64_t count = std::min(kBlock, n - i);
    const T* first = at(0);  // n elements of rank 0
    std::copy_n(first + i, count, block.data());
    for (int r = 1; r < size; ++r) {
      const T* in = at(r) + i;  // the next `count` elements of rank r
      for (std::int64_t j = 0; j < count; ++j) {
        T& total = block[static_cast<std::size_t>(j)];
        total = add(total, in[j]);
      }
    }
    store(i, block.data(), count);
  }
}

}  // namespace lockstep::comm::detail
