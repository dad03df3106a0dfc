#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string_view>
#include <type_traits>

#include <lockstep/c/context.hpp>
#include <lockstep/comm/communicator.hpp>

namespace lockstep::c {

/// What a lockstep_comm names.
struct CommObject {
  std::shared_ptr<ContextObject> context;
  std::shared_ptr<comm::Communicator> communicator;  ///< of host memory
  std::unique_ptr<comm::Communicator> gpus{};  ///< of the same ranks, for memory of the context's GPU; may be null
};

/// How a collective entry begins: every rank comes here, whether its arguments are good or not. StateError on all of
/// them where one is in another entry. `failure`: what is wrong here, or null. Rethrows it; where another rank has one,
/// PeerError with that rank's text ("agreed: rank 1: ..."). With nothing wrong, the ranks' values of `must_be_equal`
/// are compared: UsageError on all of them that names `what`.
void agree(comm::Communicator& communicator, const std::exception_ptr& failure, std::uint64_t must_be_equal = 0,
           const char* what = "");

/// Runs check() and agrees on what it throws, and on the number that it returns, if any: `what`.
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

/// A number of a text, the same in every process (FNV-1a).
[[nodiscard]] std::uint64_t number_of(std::string_view text);

/// The root of a broadcast, for agree_on(). UsageError for one that is no rank.
[[nodiscard]] std::uint64_t root_of(std::int32_t root, const comm::Communicator& communicator);

/// The largest of the ranks' values.
[[nodiscard]] std::int64_t largest_of_ranks(comm::Communicator& communicator, std::int64_t value);

}  // namespace lockstep::c
