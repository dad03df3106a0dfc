#pragma once

#include <optional>
#include <string>

#include <lockstep/comm/launch/session.hpp>

namespace lockstep::comm {

/// The processors that this rank may use, as the launcher bound it, whatever OMP_PROC_BIND does with them. Changes no
/// binding.
struct CpuShare {
  int processors = 1;             ///< in this rank's affinity mask, or fewer by the quota
  int sharers = 1;                ///< ranks of this node with the same mask, this one included
  std::string mask;               ///< "0-3,8"
  std::optional<double> quota{};  ///< of a control group: the ranks together get the time of so many processors

  /// Compute threads that this rank should use: its part of the mask, at least one.
  [[nodiscard]] int threads() const { return processors > sharers ? processors / sharers : 1; }
  /// True when the node's ranks, each computing with `threads_used` threads, leave a processor for communication.
  [[nodiscard]] bool spare(int threads_used) const { return processors >= sharers * (threads_used + 1); }
  [[nodiscard]] std::string description() const;  ///< "2 processors (0-1), shared by 2 ranks"
};

[[nodiscard]] CpuShare cpu_share(Session& session);  ///< collective

constexpr int kMostComputeThreads = 1024;  ///< of a rank; libgomp ends the program when the system refuses it a thread

/// Compute threads of a rank on the host, and where the number comes from: `asked` unless it is 0, OMP_NUM_THREADS
/// where that is set to a number, else share.threads(); at most what OpenMP gives. UsageError above
/// kMostComputeThreads.
struct ComputeThreads {
  int count = 1;
  std::string from;  ///< "OMP_NUM_THREADS"
};
[[nodiscard]] ComputeThreads compute_threads(const CpuShare& share, int asked = 0);

}  // namespace lockstep::comm
