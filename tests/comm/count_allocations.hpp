#pragma once

#include <atomic>
#include <cstdint>

/// Linking count_allocations.cpp replaces operator new, also for aligned memory. It counts the allocations of threads
/// whose `counting` is set, and of all threads while `everywhere` is set. It does not count those of a thread whose
/// `ignored` is set.
namespace count_allocations {
inline thread_local bool counting = false;
inline thread_local bool ignored = false;
inline std::atomic<bool> everywhere{false};
inline std::atomic<std::int64_t> allocations{0};
inline std::atomic<std::int64_t> bracketed{0};  ///< calls of a library whose own allocations were not counted
}  // namespace count_allocations
