#pragma once

#include <atomic>
#include <cstdint>

/// Linking count_allocations.cpp replaces operator new: allocations of threads whose `counting` is set are counted.
namespace count_allocations {
inline thread_local bool counting = false;
inline std::atomic<std::int64_t> allocations{0};
}  // namespace count_allocations
