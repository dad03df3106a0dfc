#include "count_allocations.hpp"

#include <cstddef>
#include <cstdlib>
#include <new>

void* operator new(std::size_t bytes) {
  if (count_allocations::counting) {
    ++count_allocations::allocations;
  }
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) {
    return memory;
  }
  throw std::bad_alloc();
}
// The library's own forwards to the one above, a sanitizer's does not: std::stable_sort takes its buffer with this one.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  if (count_allocations::counting) {
    ++count_allocations::allocations;
  }
  return std::malloc(bytes == 0 ? 1 : bytes);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
