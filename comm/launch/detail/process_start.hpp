#pragma once

#include <cstdlib>

#include <lockstep/comm/launch/detail/standard_files.hpp>

namespace lockstep::comm::detail {

/// What the owner of a process does first, before another thread, MPI or CUDA exists. CUDA_DEVICE_MAX_CONNECTIONS: 32
/// unless it is set, as many hardware queues as a GPU gives a process: with CUDA's 8 two streams may share one, and a
/// stream that waits holds up the other.
inline void start_process() noexcept {
  open_standard_files();
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

}  // namespace lockstep::comm::detail
