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

/// Begins a collective entry. Every rank calls agree(), even with invalid arguments; `failure` is this rank's error, or
/// null. Throws StateError on all ranks if ranks call different entries. If a rank failed, rethrows `failure` on every
/// rank that failed, and throws PeerError with the text of one `failure` ("agreed: rank 1: ...") on the other ranks. If
/// no rank failed but the ranks' `must_be_equal` differ, throws a UsageError that names `what` on all ranks.
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
