#pragma once

#include <atomic>
#include <cstdint>

/// Linking count_allocations.cpp replaces operator new, the aligned ones too. Counted are the allocations of threads
/// whose `counting` is set, and of all threads of the process while `everywhere` is; not those of a thread whose
/// `ignored` is set.
namespace count_allocations {
inline thread_local bool counting = false;
inline thread_local bool ignored = false;
inline std::atomic<bool> everywhere{false};
inline std::atomic<std::int64_t> allocations{0};
inline std::atomic<std::int64_t> bracketed{0};  ///< calls of a library whose own allocations were left out
}  // namespace count_allocations
