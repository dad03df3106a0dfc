#pragma once

#include <atomic>
#include <cstdint>

/// A program that links count_allocations.cpp has another operator new, which counts its calls. It counts calls of
/// threads that set `counting`, and calls of all threads while `everywhere` is true. It does not count calls of threads
/// that set `ignored`.
namespace count_allocations {
inline thread_local bool counting = false;
inline thread_local bool ignored = false;
inline std::atomic<bool> everywhere{false};
inline std::atomic<std::int64_t> allocations{0};
inline std::atomic<std::int64_t> bracketed{0};  ///< number of library calls in which `ignored` was set
}  // namespace count_allocations
