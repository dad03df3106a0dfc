#include <lockstep/runtime/memory/buffer.hpp>

namespace lockstep {

Buffer::Buffer(std::size_t bytes, MemoryResource& resource, Stream& stream)
    : data_(static_cast<std::byte*>(resource.allocate(bytes, kAlignment, stream))),
      bytes_(bytes),
      resource_(&resource),
      stream_(&stream) {}

Buffer::~Buffer() {
  if (data_ != nullptr) {
    resource_->deallocate(data_, bytes_, kAlignment, *stream_);
  }
}

Device Buffer::device() const {
  return resource_ != nullptr ? resource_->device() : Device::cpu();
}

void Buffer::swap(Buffer& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(resource_, other.resource_);
  std::swap(stream_, other.stream_);
}

}  // namespace lockstep
