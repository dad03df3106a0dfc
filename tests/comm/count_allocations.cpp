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
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
