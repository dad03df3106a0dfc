#pragma once

#include <cstddef>
#include <string>

#include <mpi.h>

namespace lockstep::comm::detail {

/// Memory that the ranks of a communicator share, when all are processes of one node: zeros at first.
///
/// Rank 0 makes it as a file without a name (memfd_create), which the others open through /proc/PID/fd. So no rank that
/// is killed leaves anything behind, and it does not count against the size of /dev/shm. All its pages are allocated
/// while it is made: too little memory is an answer here, not a signal later. It goes with the last process that maps
/// it.
class NodeWindow {
 public:
  /// Collective over the communicator. Where any rank cannot have it, none has: memory() is nullptr and why_not() says
  /// the reason of the first such rank, the same on all ranks. Ranks on several nodes are no failure: why_not() is
  /// empty. MpiError when MPI fails.
  NodeWindow(MPI_Comm comm, std::size_t bytes);
  ~NodeWindow();
  NodeWindow(const NodeWindow&) = delete;
  NodeWindow& operator=(const NodeWindow&) = delete;

  [[nodiscard]] void* memory() const { return memory_; }  ///< (bytes), at the beginning of a page
  [[nodiscard]] const std::string& why_not() const { return why_not_; }

 private:
  void unmap();

  std::size_t bytes_;
  void* memory_ = nullptr;
  std::string why_not_;
};

}  // namespace lockstep::comm::detail
