#pragma once

#include <string>

#include <lockstep/comm/launch/session.hpp>

namespace lockstep::comm {

/// The processors that this rank may use, as the launcher bound it. Changes no binding.
struct CpuShare {
  int processors = 1;  ///< in this rank's affinity mask
  int sharers = 1;     ///< ranks of this node with the same mask, this one included
  std::string mask;    ///< "0-3,8"

  /// Compute threads that this rank should use: its part of the mask, at least one.
  [[nodiscard]] int threads() const { return processors > sharers ? processors / sharers : 1; }
  /// True when the node's ranks, each computing with `threads_used` threads, leave a processor for communication.
  [[nodiscard]] bool spare(int threads_used) const { return processors >= sharers * (threads_used + 1); }
  [[nodiscard]] std::string description() const;  ///< "2 processors (0-1), shared by 2 ranks"
};

[[nodiscard]] CpuShare cpu_share(Session& session);  ///< collective

/// Compute threads of a rank on the host: OMP_NUM_THREADS where it is set, else share.threads().
[[nodiscard]] int compute_threads(const CpuShare& share);

}  // namespace lockstep::comm
