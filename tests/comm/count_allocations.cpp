#include "count_allocations.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

void note() {
  using namespace count_allocations;  // NOLINT(google-build-using-namespace)
  if ((counting || everywhere.load(std::memory_order_relaxed)) && !ignored) {
    ++allocations;
  }
}

void* plain(std::size_t bytes) {
  note();
  return std::malloc(bytes == 0 ? 1 : bytes);
}

void* aligned(std::size_t bytes, std::align_val_t alignment) {
  note();
  void* memory = nullptr;
  const auto boundary = std::max(static_cast<std::size_t>(alignment), sizeof(void*));
  return posix_memalign(&memory, boundary, bytes == 0 ? 1 : bytes) == 0 ? memory : nullptr;
}

void* or_throw(void* memory) {
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return memory;
}

}  // namespace

// This file replaces every form of operator new and delete, because the array and nothrow forms of a sanitizer do not
// call the plain forms.
void* operator new(std::size_t bytes) {
  return or_throw(plain(bytes));
}
void* operator new[](std::size_t bytes) {
  return or_throw(plain(bytes));
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return or_throw(aligned(bytes, alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return or_throw(aligned(bytes, alignment));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return plain(bytes);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return plain(bytes);
}
void* operator new(std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return aligned(bytes, alignment);
}
void* operator new[](std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return aligned(bytes, alignment);
}

void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
