#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include <lockstep/comm/hierarchical_communicator.hpp>
#include <lockstep/runtime/stream/stream.hpp>

#include "communicator_cases.hpp"

// Checks of hierarchical sums (first within nodes, then between nodes) for any kind of communicator.

namespace lockstep::comm::cases {

/// Node of each of four ranks: two nodes of 2 ranks; nodes of 3 and 1; two nodes whose ranks alternate; one node.
inline const std::vector<std::vector<int>> kNodesOfFour{{0, 0, 1, 1}, {0, 0, 0, 1}, {7, -1, 7, -1}, {3, 3, 3, 3}};
/// Sizes of sums: small, odd, near the size from which the ranks of a node divide the data, and longer than a chunk of
/// the shared window.
inline const std::vector<std::int64_t> kSumSizes{0, 7, 4097, 33333};

/// Returns element i of a rank's data. The rounded sum over ranks depends on the order of the ranks.
inline float uneven(int rank, std::int64_t i) {
  return 1.0f / static_cast<float>(3 + rank * 7 + static_cast<int>(i % 101)) * (rank % 2 == 0 ? 1.0f : 1e3f);
}

/// Returns the expected sum of element i. Each node adds in rank order. Then the nodes' sums are added in the order of
/// the nodes' first ranks.
inline float by_nodes(const std::vector<int>& nodes, std::int64_t i) {
  std::vector<int> order;
  std::vector<float> sums;
  for (std::size_t rank = 0; rank < nodes.size(); ++rank) {
    std::size_t at = 0;
    while (at < order.size() && order[at] != nodes[rank]) {
      ++at;
    }
    const float value = uneven(static_cast<int>(rank), i);
    if (at == order.size()) {
      order.push_back(nodes[rank]);
      sums.push_back(value);
    } else {
      sums[at] += value;
    }
  }
  float total = sums[0];
  for (std::size_t node = 1; node < sums.size(); ++node) {
    total += sums[node];
  }
  return total;
}

/// Checks a HierarchicalCommunicator over the communicator that make() returns; all ranks call make() together.
/// in_rank_order: true if the communicator of make() adds in rank order.
template <class Make>
void check_hierarchy(const Make& make, Stream& stream, bool in_rank_order) {
  for (const std::vector<int>& nodes : kNodesOfFour) {
    HierarchicalCommunicator comm(make(), nodes);
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16, DType::i32, DType::i64, DType::u64}) {
      for (const std::int64_t n : kSumSizes) {
        check_sums(comm, stream, dtype, n);
      }
    }
    check_moves(comm, stream, DType::u8, 17);
    check_order(comm, stream);
    check_split(comm, stream);
    check_counts(comm, stream);
    check_bad_input(comm, stream);

    for (const std::int64_t n : {5, 100003}) {
      std::vector<float> data(static_cast<std::size_t>(n));
      for (std::int64_t i = 0; i < n; ++i) {
        data[static_cast<std::size_t>(i)] = uneven(comm.rank(), i);
      }
      comm.all_reduce(stream, TensorView(std::span(data), Shape{n}));
      std::vector<float> all(data.size() * static_cast<std::size_t>(comm.size()));
      comm.all_gather(stream, TensorView(std::span(data), Shape{n}),
                      TensorView(std::span(all), Shape{n * comm.size()}));
      stream.synchronize();
      std::int64_t other = 0;
      for (std::int64_t i = 0; i < n; ++i) {
        const float expected = by_nodes(nodes, i);
        other += std::memcmp(&expected, &data[static_cast<std::size_t>(i)], sizeof expected) == 0 ? 0 : 1;
      }
      if (in_rank_order) {
        EXPECT_EQ(other, 0) << n << " elements";
      }
      for (int r = 0; r < comm.size(); ++r) {
        EXPECT_EQ(std::memcmp(all.data() + static_cast<std::size_t>(r) * data.size(), data.data(), 4 * data.size()), 0)
            << "rank " << r << " has other bits";
      }
    }
  }
  EXPECT_THROW(HierarchicalCommunicator(make(), {0, 1}), UsageError);
}

}  // namespace lockstep::comm::cases
