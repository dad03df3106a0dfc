#pragma once

#include <cstddef>
#include <string>

#include <mpi.h>

namespace lockstep::comm::detail {

/// Memory that the ranks of a communicator share if all are processes of one node. The memory is zero at first.
///
/// Rank 0 makes a file without a name (memfd_create), which the other ranks open through /proc/PID/fd. So a killed rank
/// leaves no file, and the memory does not count against the size of /dev/shm. The constructor allocates all pages, so
/// that why_not() can report a lack of memory. If pages were allocated at their first use, a lack of memory would end
/// the process by a signal. The last process that maps the memory frees it.
class NodeWindow {
 public:
  /// Makes the memory. Collective over the communicator. If any rank cannot have the memory, memory() is nullptr on all
  /// ranks, and why_not() is the reason of the first such rank. If the ranks are on several nodes, memory() is nullptr
  /// and why_not() is empty. Throws MpiError if MPI fails.
  NodeWindow(MPI_Comm comm, std::size_t bytes);
  ~NodeWindow();
  NodeWindow(const NodeWindow&) = delete;
  NodeWindow& operator=(const NodeWindow&) = delete;

  [[nodiscard]] void* memory() const { return memory_; }  ///< start of a page; nullptr: no memory
  [[nodiscard]] const std::string& why_not() const { return why_not_; }

 private:
  void unmap();

  std::size_t bytes_;
  void* memory_ = nullptr;
  std::string why_not_;
};

}  // namespace lockstep::comm::detail
