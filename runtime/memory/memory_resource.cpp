#include <lockstep/runtime/memory/memory_resource.hpp>

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

}  // namespace

void* HostMemoryResource::allocate(std::size_t bytes, std::size_t alignment, Stream&) {
  require<ShapeError>(std::has_single_bit(alignment), "allocate: alignment is ", alignment,
                      ", expected a power of two");
  if (bytes == 0) {
    return nullptr;
  }
  alignment = std::max(alignment, bytes >= kHugePage ? kHugePage : sizeof(void*));
  void* pointer = nullptr;
  constexpr auto kMost = static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max());
  const bool ok = bytes <= kMost && posix_memalign(&pointer, alignment, bytes) == 0;
  require<OutOfMemory>(ok, "requested ", bytes, " bytes on cpu: the system refused, expected that much free memory");
#ifdef MADV_HUGEPAGE
  if (bytes >= kHugePage) {
    madvise(pointer, bytes, MADV_HUGEPAGE);  // a failure is ignored, because the memory also works with ordinary pages
  }
#endif
  counter_.add(bytes);
  return pointer;
}

void HostMemoryResource::deallocate(void* pointer, std::size_t bytes, std::size_t, Stream&) noexcept {
  if (pointer != nullptr) {
    counter_.subtract(bytes);
  }
  std::free(pointer);
}

TrackingMemoryResource::TrackingMemoryResource(MemoryResource& upstream, std::size_t limit_bytes)
    : upstream_(upstream), limit_bytes_(limit_bytes) {}

void* TrackingMemoryResource::allocate(std::size_t bytes, std::size_t alignment, Stream& stream) {
  if (bytes == 0) {
    return nullptr;
  }
  std::size_t in_use = bytes_in_use_.load();
  do {
    require<OutOfMemory>(bytes <= limit_bytes_ && in_use <= limit_bytes_ - bytes, "requested ", bytes,
                         " bytes, in use ", in_use, ", limit ", limit_bytes_, ", on ", device(),
                         ", expected at most the limit in all");
  } while (!bytes_in_use_.compare_exchange_weak(in_use, in_use + bytes));
  void* pointer = nullptr;
  try {
    pointer = upstream_.allocate(bytes, alignment, stream);
  } catch (...) {
    bytes_in_use_ -= bytes;
    throw;
  }
  // A null pointer means that a resource of the host program broke MemoryResource's contract. The caller reports this
  // error.
  if (pointer == nullptr) {
    bytes_in_use_ -= bytes;
    return nullptr;
  }
  ++allocations_;
  const std::size_t now = in_use + bytes;
  std::size_t peak = peak_bytes_.load();
  while (peak < now && !peak_bytes_.compare_exchange_weak(peak, now)) {
  }
  return pointer;
}

void TrackingMemoryResource::deallocate(void* pointer, std::size_t bytes, std::size_t alignment,
                                        Stream& stream) noexcept {
  if (pointer == nullptr) {
    return;
  }
  upstream_.deallocate(pointer, bytes, alignment, stream);
  ++deallocations_;
  bytes_in_use_ -= bytes;
}

std::optional<MemoryUsage> TrackingMemoryResource::usage() const {
  const std::optional<MemoryUsage> upstream = upstream_.usage();
  return MemoryUsage{.in_use = bytes_in_use_.load(),
                     .cached = upstream.has_value() ? upstream->cached : 0,
                     .peak = peak_bytes_.load()};
}

TrackingMemoryResource::Counts TrackingMemoryResource::counts() const {
  return {allocations_.load(), deallocations_.load(), bytes_in_use_.load(), peak_bytes_.load()};
}

}  // namespace lockstep
