#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nccl.h>

/// A stand-in for the calls of NCCL that comm/nccl makes: the real header with symbols of this library. Ranks are
/// threads of one process, on devices of the stand-in for CUDA (control.hpp), whose streams run the operations. A
/// collective runs when the streams of all ranks have reached it; it really moves the data and adds in rank order. Uses
/// that NCCL leaves undefined are recorded as violations there: ranks that make different calls, a call while one is in
/// progress, memory or streams of another device, a communicator that is used after its end. While a graph that
/// captured operations exists, ending the communicator stays in progress and aborting it blocks the thread, as with
/// NCCL.
///
/// With Options::folder, ranks are processes with one rank of a communicator each. They exchange the data of a
/// collective through that folder; the machine's queued work then runs by itself. Only collectives are allowed:
/// messages and splits are violations, and so are collectives that differ. Nothing in the folder is deleted.
namespace lockstep::nccl_standin {

struct Options {
  int version = NCCL_VERSION_CODE;  ///< answer of ncclGetVersion()
  /// Every call of a communicator answers ncclInProgress, and so do this many polls after it. Then the call takes
  /// effect.
  int polls = 0;
  int stuck_rank = -1;       ///< rank whose set-up is never over
  bool peers_notice = true;  ///< true: when one rank aborts, the others see ncclRemoteError; false: they see nothing
  std::string folder{};      ///< new folder in which ranks that are processes meet; empty: ranks are threads
};
/// The answer of ncclGroupSimulateEnd() for several ranks: kEstimateMicroseconds, and one more microsecond for each
/// kEstimateBytes bytes of a rank's larger tensor. The call runs nothing. For communicators whose calls do not block it
/// is a violation, since NCCL executes their group.
inline constexpr int kEstimateMicroseconds = 10;
inline constexpr int kEstimateBytes = 1000;

/// Removes all communicators and injected errors. To be called after standin::reset().
void reset(const Options& options = {});

/// Makes the n-th call of this function from now (1 is the next), on any thread, answer with `error` and do nothing.
void fail_call(std::int64_t n, ncclResult_t error, std::string_view name);
/// Puts the communicators of this rank into an error from their n-th poll from now on.
void fail_rank(int rank, ncclResult_t error, std::int64_t n = 1);

[[nodiscard]] std::vector<std::string> leaks();  ///< communicators that were neither destroyed nor aborted
[[nodiscard]] std::int64_t aborts();             ///< calls of ncclCommAbort() since reset()
/// Returns the number of calls of collectives since reset() whose tensors all lie in memory that their rank has
/// registered.
[[nodiscard]] std::int64_t in_registered_memory();

}  // namespace lockstep::nccl_standin
