#pragma once

#include <optional>
#include <string>

#include <lockstep/comm/launch/session.hpp>

namespace lockstep::comm {

/// Processors that this rank may use, as the launcher bound it, whatever OMP_PROC_BIND is. Changes no binding.
struct CpuShare {
  int processors = 1;             ///< number of processors in this rank's affinity mask; smaller if there is a quota
  int sharers = 1;                ///< number of ranks of this node with the same mask, this rank included
  std::string mask;               ///< affinity mask as text: "0-3,8"
  std::optional<double> quota{};  ///< quota of a control group: all ranks together get the time of this many processors

  /// Returns the number of compute threads that this rank should use: its share of the mask, at least one.
  [[nodiscard]] int threads() const { return processors > sharers ? processors / sharers : 1; }
  /// Returns true if a processor remains for communication while the sharers compute with `threads_used` threads each.
  [[nodiscard]] bool spare(int threads_used) const { return processors >= sharers * (threads_used + 1); }
  [[nodiscard]] std::string description() const;  ///< text such as "2 processors (0-1), shared by 2 ranks"
};

[[nodiscard]] CpuShare cpu_share(Session& session);  ///< reads this rank's share; collective

constexpr int kMostComputeThreads = 1024;  ///< limit of a rank; with too many threads libgomp ends the program

/// Number of a rank's compute threads, and its origin for messages. The number is `asked` if that is above 0. Otherwise
/// it is OpenMP's setting if OMP_NUM_THREADS has a number, or share.threads() if not. It is at most OpenMP's limit.
/// UsageError above kMostComputeThreads.
struct ComputeThreads {
  int count = 1;
  std::string from;  ///< origin of the number: "OMP_NUM_THREADS"
};
[[nodiscard]] ComputeThreads compute_threads(const CpuShare& share, int asked = 0);

}  // namespace lockstep::comm
