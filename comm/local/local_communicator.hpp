#pragma once

#include <memory>

#include <lockstep/comm/communicator.hpp>

namespace lockstep::comm {

/// N ranks as threads of one process, which exchange data in shared memory: for tests, and for programs without MPI (N
/// = 1). Sums run in rank order. Tensors must be on the CPU. In a group of one rank, all-reduce and broadcast also take
/// tensors on a GPU, which they do not change, and can be captured. If a rank's communicator is destroyed while other
/// ranks wait for that rank, their operation throws PeerError. The operation also throws PeerError if the group is
/// destroyed before communicator() was called for that rank. If the ranks' collectives differ (in operation, type, size
/// or root), all ranks throw StateError.
class LocalGroup {
 public:
  explicit LocalGroup(int size);  ///< throws UsageError unless size >= 1
  ~LocalGroup();
  /// Returns the communicator of `rank`, which may outlive the group. A second call for the rank throws StateError.
  [[nodiscard]] std::unique_ptr<Communicator> communicator(int rank);

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace lockstep::comm
