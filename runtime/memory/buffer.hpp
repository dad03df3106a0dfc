#pragma once

#include <cstddef>
#include <utility>

#include <lockstep/runtime/stream/context.hpp>

namespace lockstep {

/// Owns a range of uninitialised bytes from a memory resource. Move-only. The resource and the stream it was made
/// with must outlive it; the destructor gives the memory back on that stream.
class Buffer {
 public:
  Buffer() = default;
  Buffer(std::size_t bytes, MemoryResource& resource, Stream& stream);
  Buffer(std::size_t bytes, Context& context) : Buffer(bytes, context.memory(), context.stream()) {}
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer(std::move(other)).swap(*this);
    return *this;
  }
  ~Buffer();

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] Device device() const;
  void swap(Buffer& other) noexcept;

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  MemoryResource* resource_ = nullptr;
  Stream* stream_ = nullptr;
};

}  // namespace lockstep
