// Tests hierarchical sums with ranks as threads. A list of numbers assigns each rank to a simulated node.
#include <lockstep/comm/hierarchical_communicator.hpp>

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "hierarchical_cases.hpp"
#include "local_ranks.hpp"

namespace lockstep::comm {
namespace {

TEST(HierarchicalCommunicator, AllTypesSizesAndNodes) {
  for (const bool worker : {false, true}) {
    on_ranks(4, [&](Communicator& world) {
      Stream stream = worker ? Stream::host_worker("comm") : Stream::host_inline();
      cases::check_hierarchy([&] { return world.split(0, world.rank()); }, stream, true);
    });
  }
}

TEST(HierarchicalCommunicator, TheOrderIsThatOfNodesAndNotOfRanks) {
  const std::vector<int> dealt{0, 1, 0, 1};
  std::int64_t differ = 0;
  for (std::int64_t i = 0; i < 101; ++i) {
    float flat = cases::uneven(0, i);
    for (int r = 1; r < 4; ++r) {
      flat += cases::uneven(r, i);
    }
    differ += flat == cases::by_nodes(dealt, i) ? 0 : 1;
  }
  EXPECT_GT(differ, 0) << "the data would not show another order";
}

TEST(HierarchicalCommunicator, ARankThatFailsEndsTheWaitOfAllOthers) {
  for (const std::vector<int>& nodes : {std::vector<int>{0, 0, 1, 1}, {0, 0, 0, 1}}) {
    for (int lost = 0; lost < 4; ++lost) {
      const std::vector<std::string> failures = run_ranks(4, [&](Communicator& world) {
        HierarchicalCommunicator comm(world.split(0, world.rank()), nodes);
        Stream stream = Stream::host_inline();
        std::vector<float> data(100000, 1.0f);
        comm.all_reduce(stream, TensorView(std::span(data), Shape{100000}));
        require<DataError>(world.rank() != lost, "lost");
        comm.all_reduce(stream, TensorView(std::span(data), Shape{100000}));
      });
      for (int rank = 0; rank < 4; ++rank) {
        const std::string& failure = failures[static_cast<std::size_t>(rank)];
        EXPECT_EQ(failure.find(rank == lost ? "lost" : "peer: "), 0U) << "rank " << rank << ": '" << failure << "'";
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::comm
