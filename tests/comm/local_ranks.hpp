#pragma once

#include <cstddef>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <lockstep/comm/local/local_communicator.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::comm {

/// Runs body(communicator), or body(communicator, second communicator of the same ranks), on `size` threads, one for
/// each rank. Returns for each rank "" or the text of its exception. The text of a PeerError begins with "peer: ".
template <class Body>
std::vector<std::string> run_ranks(int size, Body&& body) {
  LocalGroup group(size);
  std::vector<std::string> failures(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      std::string& failure = failures[static_cast<std::size_t>(rank)];
      try {
        const std::unique_ptr<Communicator> communicator = group.communicator(rank);
        if constexpr (std::is_invocable_v<Body&, Communicator&>) {
          body(*communicator);
        } else {
          body(*communicator, *communicator->split(0, rank));
        }
      } catch (const PeerError& e) {
        failure = std::string("peer: ") + e.what();
      } catch (const std::exception& e) {
        failure = e.what();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return failures;
}

inline std::vector<std::string> none_failed(int size) {
  return std::vector<std::string>(static_cast<std::size_t>(size));
}

/// Expects that no rank threw. failures: result of run_ranks().
inline void expect_none_failed(const std::vector<std::string>& failures, const char* file = __builtin_FILE(),
                               int line = __builtin_LINE()) {
  for (std::size_t rank = 0; rank < failures.size(); ++rank) {
    if (!failures[rank].empty()) {
      ADD_FAILURE_AT(file, line) << "rank " << rank << " of " << failures.size() << " threw: " << failures[rank];
    }
  }
}

/// Calls run_ranks() with body(communicator), and expects that no rank throws.
template <class Body>
void on_ranks(int size, Body&& body, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  expect_none_failed(run_ranks(size, body), file, line);
}

}  // namespace lockstep::comm
