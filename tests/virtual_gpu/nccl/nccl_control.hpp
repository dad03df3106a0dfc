#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nccl.h>

/// A stand-in for NCCL. This library implements the functions of the real header that comm/nccl calls. Ranks are
/// threads of one process. They use devices of the stand-in for CUDA (control.hpp), whose streams run the operations. A
/// collective runs when the streams of all ranks have reached it. It moves real data, and adds in the order of ranks.
///
/// Uses that NCCL leaves undefined are recorded as violations of the stand-in for CUDA. Examples are ranks that make
/// different calls, a call during another call, memory or streams of another device, and a communicator that is used
/// after its end.
///
/// While a graph with captured operations exists, the communicator cannot end, as in NCCL: ending it stays in progress,
/// and aborting it blocks the thread.
///
/// With Options::folder, each rank of a communicator is a process. Processes exchange the data of collectives through
/// that folder, and a thread executes queued work. Messages and splits are then recorded as violations, because they
/// are not allowed; so are collectives that do not match. Nothing in the folder is deleted.
namespace lockstep::nccl_standin {

struct Options {
  int version = NCCL_VERSION_CODE;  ///< answer of ncclGetVersion()
  /// Number of polls that return ncclInProgress after a call on a communicator. The call itself returns ncclInProgress,
  /// too. It takes effect after these polls.
  int polls = 0;
  int stuck_rank = -1;       ///< rank whose initialisation never ends
  bool peers_notice = true;  ///< whether the other ranks see ncclRemoteError after one rank aborts
  std::string folder{};  ///< new folder through which ranks that are processes communicate; empty: ranks are threads
};
/// The result of ncclGroupSimulateEnd() for several ranks: kEstimateMicroseconds, plus one microsecond for each
/// kEstimateBytes bytes of the larger of a rank's input and output. The call runs nothing. For communicators with
/// non-blocking calls, the call is a violation, because NCCL would execute their group.
inline constexpr int kEstimateMicroseconds = 10;
inline constexpr int kEstimateBytes = 1000;

/// Removes all communicators and injected errors. Call it after standin::reset().
void reset(const Options& options = {});

/// Makes the n-th call of this function from now return `error` and do nothing. n = 1 is the next call. Calls of all
/// threads count.
void fail_call(std::int64_t n, ncclResult_t error, std::string_view name);
/// Makes the communicators of this rank fail with `error` at their n-th poll from now.
void fail_rank(int rank, ncclResult_t error, std::int64_t n = 1);

[[nodiscard]] std::vector<std::string> leaks();  ///< communicators that were neither destroyed nor aborted
[[nodiscard]] std::int64_t aborts();             ///< number of ncclCommAbort() calls since reset()
/// Returns the number of collective calls since reset() whose tensors are all in memory that the rank has registered.
[[nodiscard]] std::int64_t in_registered_memory();

}  // namespace lockstep::nccl_standin
