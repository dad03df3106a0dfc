#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string_view>
#include <type_traits>

#include <lockstep/c/context.hpp>
#include <lockstep/comm/communicator.hpp>

namespace lockstep::c {

/// The object that a lockstep_comm names.
struct CommObject {
  std::shared_ptr<ContextObject> context;
  std::shared_ptr<comm::Communicator> communicator;  ///< communicator for host memory
  std::unique_ptr<comm::Communicator> gpus{};        ///< the same ranks, for memory of the context's GPU; may be null
};

/// Begins a collective entry: every rank calls it, whether its arguments are valid or not. `failure` is this rank's
/// error, or null. Throws StateError on all ranks when a rank calls another entry. Otherwise rethrows `failure`, or
/// throws PeerError with the text of a rank that failed ("agreed: rank 1: ..."). When no rank failed, compares the
/// ranks' values of `must_be_equal`: a UsageError on all ranks names `what` if the values differ.
void agree(comm::Communicator& communicator, const std::exception_ptr& failure, std::uint64_t must_be_equal = 0,
           const char* what = "");

/// Runs check() and calls agree() with the exception that it throws, and with the number that it returns, if any.
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

/// Returns a hash of a text, equal in every process (FNV-1a).
[[nodiscard]] std::uint64_t number_of(std::string_view text);

/// Returns the root of a broadcast as a number for agree_on(). Throws UsageError unless root is a rank.
[[nodiscard]] std::uint64_t root_of(std::int32_t root, const comm::Communicator& communicator);

/// Returns the largest of the ranks' values. Collective.
[[nodiscard]] std::int64_t largest_of_ranks(comm::Communicator& communicator, std::int64_t value);

}  // namespace lockstep::c
