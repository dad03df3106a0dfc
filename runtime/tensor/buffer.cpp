#include <lockstep/runtime/tensor/buffer.hpp>

#include <cxxabi.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <typeinfo>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep {
namespace {

bool is_aligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % kAlignment == 0;
}

/// Returns the name of the resource's class as in the source code. Error texts use the name to distinguish the
/// resources of a program.
std::string class_of(const MemoryResource& resource) {
  const char* mangled = typeid(resource).name();
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(abi::__cxa_demangle(mangled, nullptr, nullptr, &status), std::free);
  return status == 0 ? name.get() : mangled;
}

std::byte* checked_allocation(std::size_t bytes, MemoryResource& resource, Stream& stream) {
  void* const pointer = resource.allocate(bytes, kAlignment, stream);
  if (bytes > 0) {
    require<OutOfMemory>(pointer != nullptr, "requested ", bytes, " bytes on ", resource.device(), ": memory resource ",
                         class_of(resource), " returned null, expected an address");
    if (!is_aligned(pointer)) {
      resource.deallocate(pointer, bytes, kAlignment, stream);
      throw ShapeError(concat("requested ", bytes, " bytes on ", resource.device(), ": memory resource ",
                              class_of(resource), " returned address ", pointer, ", expected one aligned to ",
                              kAlignment, " bytes"));
    }
  }
  return static_cast<std::byte*>(pointer);
}

}  // namespace

Buffer::Buffer(std::size_t bytes, MemoryResource& resource, Stream& stream)
    : data_(checked_allocation(bytes, resource, stream)),
      bytes_(bytes),
      device_(resource.device()),
      resource_(&resource),
      stream_(&stream) {}

Buffer Buffer::lent(std::string_view what, const TensorView& memory, std::size_t bytes, const Device& device) {
  require_memory(what, memory, bytes, device);
  Buffer buffer;
  buffer.data_ = static_cast<std::byte*>(memory.data);
  buffer.bytes_ = bytes;
  buffer.device_ = device;
  return buffer;
}

Buffer::~Buffer() {
  if (data_ != nullptr && resource_ != nullptr) {
    resource_->deallocate(data_, bytes_, kAlignment, *stream_);
  }
}

void Buffer::swap(Buffer& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(device_, other.device_);
  std::swap(resource_, other.resource_);
  std::swap(stream_, other.stream_);
}

void require_memory(std::string_view what, const TensorView& memory, std::size_t bytes, const Device& device) {
  require<DeviceError>(memory.device == device, what, " is on ", memory.device, ", expected ", device);
  if (bytes == 0) {
    return;
  }
  require<ShapeError>(memory.is_contiguous(), what, " ", memory, " with strides ", memory.strides,
                      " has gaps, expected memory without");
  const std::size_t given = memory.data != nullptr ? memory.bytes() : 0;
  require<ShapeError>(given >= bytes, what, " has ", given, " bytes, expected at least ", bytes);
  require<ShapeError>(is_aligned(memory.data), what, " begins at address ", memory.data, ", expected one aligned to ",
                      kAlignment, " bytes");
}

}  // namespace lockstep
