#pragma once

#include <string>

#include <lockstep/comm/launch/session.hpp>

namespace lockstep::comm {

/// The processors that this rank may use, as the launcher bound it. Nothing is bound or changed here.
struct CpuShare {
  int processors = 1;  ///< in this rank's affinity mask
  int sharers = 1;     ///< ranks of this node with the same mask, this one included
  std::string mask;    ///< "0-3,8"

  /// Compute threads a rank should run: its part of the mask, at least one.
  [[nodiscard]] int threads() const { return processors > sharers ? processors / sharers : 1; }
  /// True when a rank that computes with `threads` threads leaves a processor for communication.
  [[nodiscard]] bool spare(int threads_used) const { return processors >= sharers * (threads_used + 1); }
  [[nodiscard]] std::string description() const;  ///< "2 processors (0-1), shared by 2 ranks"
};

[[nodiscard]] CpuShare cpu_share(Session& session);  ///< collective

/// Host threads of a rank that computes there: OMP_NUM_THREADS where that is set, else its part of the processors.
[[nodiscard]] int compute_threads(const CpuShare& share);

}  // namespace lockstep::comm
