#pragma once

#include <atomic>
#include <cstdint>

/// Linking count_allocations.cpp replaces operator new: allocations of threads whose `counting` is set are counted.
namespace count_allocations {
inline thread_local bool counting = false;
inline std::atomic<std::int64_t> allocations{0};
inline std::atomic<std::int64_t> bracketed{0};  ///< calls of a library whose own allocations were left out
}  // namespace count_allocations
