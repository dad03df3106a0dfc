#pragma once

#include <memory>

#include <lockstep/comm/communicator.hpp>

namespace lockstep::comm {

/// N ranks as threads of one process, over shared memory: tests, and programs without MPI (N = 1). Sums run in rank
/// order. Tensors on the CPU; the rank of a group of one may also reduce and broadcast tensors of a GPU, which changes
/// nothing and can be captured. A rank whose communicator is destroyed while others wait fails their operation with
/// PeerError instead of leaving them waiting; so does a rank that nobody took when the group is destroyed. Collectives
/// that differ between ranks (operation, type, size, root) give StateError on all of them.
class LocalGroup {
 public:
  explicit LocalGroup(int size);  ///< UsageError unless size >= 1
  ~LocalGroup();
  /// The communicator of one rank; once per rank. Outlives the group if need be.
  [[nodiscard]] std::unique_ptr<Communicator> communicator(int rank);

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace lockstep::comm
