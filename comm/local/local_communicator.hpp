#pragma once

#include <memory>

#include <lockstep/comm/communicator.hpp>

namespace lockstep::comm {

/// N ranks as threads of one process, which exchange data in shared memory: for tests, and for programs without MPI (N
/// = 1). Sums run in rank order. Takes tensors on the CPU. In a group of one, all-reduce and broadcast also take
/// tensors of a GPU, which they do not change, and can be captured. If a rank's communicator is destroyed while others
/// wait, their operation throws PeerError; the same happens if the group is destroyed and a rank's communicator was
/// never taken. If collectives differ between ranks (operation, type, size, root), all of them throw StateError.
class LocalGroup {
 public:
  explicit LocalGroup(int size);  ///< UsageError unless size >= 1
  ~LocalGroup();
  /// Returns the communicator of one rank, once for each rank. The communicator may outlive the group.
  [[nodiscard]] std::unique_ptr<Communicator> communicator(int rank);

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace lockstep::comm
