#pragma once

#include <cstddef>
#include <string_view>
#include <utility>

#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep {

/// Owns a range of uninitialised bytes from a memory resource, or refers to memory that the host program owns (lent()).
/// Can only be moved. Resource and stream must outlive the buffer; its destructor frees the memory on that stream.
class Buffer {
 public:
  Buffer() = default;
  /// Allocates `bytes` bytes, aligned to kAlignment. Checks the resource's result, because the resource may be code of
  /// the host program: throws OutOfMemory for a null pointer; for a wrong alignment, frees the memory and throws
  /// ShapeError. These texts name the resource's class. Exceptions of the resource pass unchanged. For 0 bytes nothing
  /// is checked.
  Buffer(std::size_t bytes, MemoryResource& resource, Stream& stream);
  Buffer(std::size_t bytes, Context& context) : Buffer(bytes, context.memory(), context.stream()) {}
  /// Refers to the first `bytes` bytes of memory that the host program owns and keeps alive. The destructor frees
  /// nothing. Throws the errors of require_memory(); `what` names the memory in the text.
  [[nodiscard]] static Buffer lent(std::string_view what, const TensorView& memory, std::size_t bytes,
                                   const Device& device);
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer(std::move(other)).swap(*this);
    return *this;
  }
  ~Buffer();

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] Device device() const { return device_; }
  void swap(Buffer& other) noexcept;

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  Device device_ = Device::cpu();
  MemoryResource* resource_ = nullptr;  ///< nullptr if the memory is lent, or if there is none
  Stream* stream_ = nullptr;
};

/// Throws unless `memory`, of any type and shape, can be used as a block of `bytes` bytes on `device`. Throws
/// DeviceError if `memory` is on another device. Throws ShapeError if `memory` has gaps, has fewer bytes (the text has
/// both numbers), or begins at an address that is not a multiple of kAlignment. `what` names the memory in the text.
/// With 0 bytes only the device is checked.
void require_memory(std::string_view what, const TensorView& memory, std::size_t bytes, const Device& device);

}  // namespace lockstep
