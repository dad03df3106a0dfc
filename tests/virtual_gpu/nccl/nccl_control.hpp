#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nccl.h>

/// A stand-in for the calls of NCCL that comm/nccl makes: the real header, our symbols. Ranks are threads of one
/// process, on devices of the stand-in for CUDA (control.hpp), whose streams run the operations: a collective runs when
/// the streams of all ranks have come to it, really moves the data and adds in rank order. What NCCL leaves undefined
/// is written down as a violation there: ranks that call different things, a call while one is in progress, memory or
/// streams of another device, a communicator that is used after its end. While a graph lives that captured operations,
/// an end stays in progress and an abort blocks its thread, as NCCL does.
///
/// With Options::folder ranks are processes, one of a communicator each, which leave for each other there what they
/// bring to a collective; the machine's queued work then runs by itself. Only collectives: messages and splits are
/// violations, and so are collectives that differ. Nothing there is deleted.
namespace lockstep::nccl_standin {

struct Options {
  int version = NCCL_VERSION_CODE;  ///< answer of ncclGetVersion()
  /// Every call of a communicator answers ncclInProgress, and so do this many polls after it; only then it takes
  /// effect.
  int polls = 0;
  int stuck_rank = -1;       ///< rank whose set-up is never over
  bool peers_notice = true;  ///< when one rank aborts, the others see ncclRemoteError; else they see nothing
  std::string folder{};  ///< folder of this run alone, where ranks meet that are processes; empty: ranks are threads
};
/// What ncclGroupSimulateEnd() answers for several ranks: so many microseconds, and one more for each so many bytes of
/// a rank's larger tensor. It runs nothing; for communicators whose calls do not block it is a violation, since NCCL
/// executes their group.
inline constexpr int kEstimateMicroseconds = 10;
inline constexpr int kEstimateBytes = 1000;

/// After standin::reset(): no communicators, no injected errors.
void reset(const Options& options = {});

/// The n-th call from now (1 is the next) of this function, on any thread, answers with error and does nothing.
void fail_call(std::int64_t n, ncclResult_t error, std::string_view name);
/// From its n-th poll from now on the communicators of this rank are in error.
void fail_rank(int rank, ncclResult_t error, std::int64_t n = 1);

[[nodiscard]] std::vector<std::string> leaks();  ///< communicators that were neither destroyed nor aborted
[[nodiscard]] std::int64_t aborts();             ///< calls of ncclCommAbort() since reset()
/// Calls of collectives since reset() whose tensors all lie in memory that their rank has registered.
[[nodiscard]] std::int64_t in_registered_memory();

}  // namespace lockstep::nccl_standin
