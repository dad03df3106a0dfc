#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string_view>
#include <type_traits>

#include <lockstep/c/context.hpp>
#include <lockstep/comm/communicator.hpp>

namespace lockstep::c {

/// The object of a handle of type lockstep_comm.
struct CommObject {
  std::shared_ptr<ContextObject> context;
  std::shared_ptr<comm::Communicator> communicator;  ///< communicator of the ranks for host memory
  std::unique_ptr<comm::Communicator> gpus{};        ///< communicator of these ranks for the context's GPU; may be null
};

/// Checks at the start of a collective entry that no rank has failed. Every rank must call agree(), also with invalid
/// arguments. `failure` is this rank's error, or null. Errors:
/// - If the ranks call different entries, all ranks throw StateError.
/// - If some ranks have failed, these ranks rethrow their `failure`. The other ranks throw PeerError with the text of
///   one failed rank ("agreed: rank 1: ...").
/// - If no rank has failed but `must_be_equal` differs between ranks, all ranks throw a UsageError that names `what`.
void agree(comm::Communicator& communicator, const std::exception_ptr& failure, std::uint64_t must_be_equal = 0,
           const char* what = "");

/// Calls agree() with the exception that check() throws and the number that check() returns, if any.
template <class Check>
void agree_on(comm::Communicator& communicator, Check&& check, const char* what = "") {
  std::exception_ptr failure;
  std::uint64_t must_be_equal = 0;
  try {
    if constexpr (std::is_void_v<decltype(check())>) {
      check();
    } else {
      must_be_equal = check();
    }
  } catch (...) {
    failure = std::current_exception();
  }
  agree(communicator, failure, must_be_equal, what);
}

/// Returns a hash of `text` (FNV-1a) that is the same in every process.
[[nodiscard]] std::uint64_t number_of(std::string_view text);

/// Returns `root`, the root of a broadcast, as a number for agree_on(). Throws UsageError if no rank has this number.
[[nodiscard]] std::uint64_t root_of(std::int32_t root, const comm::Communicator& communicator);

/// Returns on every rank the largest `value` of all ranks. Collective.
[[nodiscard]] std::int64_t largest_of_ranks(comm::Communicator& communicator, std::int64_t value);

}  // namespace lockstep::c
