#pragma once

#include <cstddef>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <lockstep/comm/local/local_communicator.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::comm {

/// Runs body(communicator) as `size` ranks on threads. What each rank threw: "" or the text, PeerError with "peer: "
/// in front.
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
        body(*communicator);
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

/// run_ranks(), of which none may fail.
template <class Body>
void expect_ranks(int size, Body&& body, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  if (const std::vector<std::string> failures = run_ranks(size, body); failures != none_failed(size)) {
    ADD_FAILURE_AT(file, line) << ::testing::PrintToString(failures);
  }
}

}  // namespace lockstep::comm
