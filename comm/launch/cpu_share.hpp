#pragma once

#include <optional>
#include <string>

#include <lockstep/comm/launch/session.hpp>

namespace lockstep::comm {

/// Processors that this rank may use after its launcher has bound the process. If OMP_PROC_BIND is `primary`, the rank
/// may use only the processors of one OpenMP place. cpu_share() changes no binding.
struct CpuShare {
  int processors = 1;  ///< number of processors in `mask`, shared by `sharers` ranks; `quota` may lower it
  int sharers = 1;     ///< number of ranks of this node with the same mask, including this rank
  std::string mask;    ///< affinity mask of this rank: "0-3,8"
  /// Processor time that the control groups allow all ranks of the node together, in processors; nullopt for no limit.
  std::optional<double> quota{};

  /// Returns the number of compute threads that this rank should use: an equal part of `processors`, at least one.
  [[nodiscard]] int threads() const { return processors > sharers ? processors / sharers : 1; }
  /// Returns true if each rank with this mask can compute with `threads_used` threads and also has a processor for
  /// communication.
  [[nodiscard]] bool spare(int threads_used) const { return processors >= sharers * (threads_used + 1); }
  [[nodiscard]] std::string description() const;  ///< text such as "2 processors (0-1), shared by 2 ranks"
};

[[nodiscard]] CpuShare cpu_share(Session& session);  ///< reads this rank's share; collective

constexpr int kMostComputeThreads = 1024;  ///< limit for each rank; libgomp ends a program with too many threads

/// Number of a rank's compute threads, and the number's origin. compute_threads() takes `asked` if `asked` is above 0,
/// otherwise OpenMP's setting if OMP_NUM_THREADS begins with a number, otherwise share.threads(). The number is at most
/// the largest number of threads that OpenMP gives (OMP_THREAD_LIMIT). compute_threads() throws UsageError if the
/// number is above kMostComputeThreads.
struct ComputeThreads {
  int count = 1;
  std::string from;  ///< origin of the number, for messages: "OMP_NUM_THREADS"
};
[[nodiscard]] ComputeThreads compute_threads(const CpuShare& share, int asked = 0);

}  // namespace lockstep::comm
