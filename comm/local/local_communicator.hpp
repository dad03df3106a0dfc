#pragma once

#include <memory>

#include <lockstep/comm/communicator.hpp>

namespace lockstep::comm {

/// A group of ranks that are threads of one process and exchange data in its memory. Tests use several ranks; programs
/// without MPI use one rank. Sums run in rank order. Tensors must be on the CPU. In a group of one rank, all-reduce and
/// broadcast also take tensors on a GPU; they then do nothing, and a Graph may capture them.
///
/// If a rank's communicator is destroyed while other ranks wait for that rank, the operation of the other ranks throws
/// PeerError. This operation also throws PeerError if the group is destroyed before communicator() was called for that
/// rank. If the ranks' collectives differ (in operation, type, size or root), all ranks throw StateError.
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
