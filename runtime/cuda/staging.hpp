#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/detail/copy_blocks.hpp>
#include <lockstep/runtime/memory/cuda_memory.hpp>
#include <lockstep/runtime/tensor/buffer.hpp>
#include <lockstep/runtime/tensor/copy.hpp>

namespace lockstep::cuda {

/// Returns the address of the element that is `index` elements after the view's first element.
inline std::byte* element(const TensorView& view, std::int64_t index) {
  return static_cast<std::byte*>(view.data) + index * static_cast<std::int64_t>(size_of(view.dtype));
}

/// Staging memory of a CudaContext for copies: a pinned block of two halves, allocated at first use. A half is filled
/// again only after the copy that emptied it is complete. A Staging also stores to which other GPUs the device has
/// direct access. It lives as long as the context (Context::library).
class Staging {
 public:
  /// Returns the Staging of `context`. The first call makes the object, without memory and without a stream.
  static Staging& of(Context& context);
  explicit Staging(Context& context) : context_(context), resource_(context.device()) {}

  void configure(const StagingOptions& options);
  [[nodiscard]] const StagingOptions& options() const { return options_; }

  /// Returns true if the context's device has peer access to the device of `other`. The first call for a device enables
  /// peer access. Memory of a pool also needs access to the pool itself; this call enables that access, too.
  [[nodiscard]] bool reaches(const TensorView& other);

  // These three functions copy through the two halves of the staging memory. Between host and device, types and strides
  // may differ. Between devices, the innermost axis must have stride 1 in both views.
  void from_host(const TensorView& host, const TensorView& device);  ///< returns after the host memory was read
  void to_host(const TensorView& device, const TensorView& host);    ///< returns after the copy is complete
  void across(const TensorView& src, const TensorView& dst);         ///< copies between two GPUs; does not block

 private:
  /// Another GPU that this context copies from or to.
  struct Peer {
    Device device;
    bool direct;
    /// Stream and events are made by the first copy that goes through the host.
    std::optional<Stream> stream;
    std::optional<Event> events[2];
  };
  struct Half {
    std::byte* data = nullptr;
    std::optional<Event> last;    ///< event on the context's stream, after all work that used the half
    std::optional<Event> passed;  ///< event on the context's stream, after across() has filled or emptied this half
  };
  class Rest;

  Peer& peer(Device other);
  void allocate();  ///< allocates the halves unless they exist
  [[nodiscard]] TensorView staged(const CopyLoops& box, DType dtype, int half) const;
  void before_next_use(int half) { context_.stream().record(*halves_[half].last); }

  Context& context_;
  StagingOptions options_;
  PinnedMemoryResource resource_;
  std::optional<CpuContext> host_;  ///< context whose threads fill and empty the halves
  Half halves_[2];
  std::optional<Event> begin_;
  Buffer memory_;            ///< memory of both halves, freed after the stream is idle
  std::vector<Peer> peers_;  ///< destroyed before memory_, because the peers' streams use memory_
};

/// Enqueues dst = src on the copy engine, in as few calls as plan_blocks() finds. `size` is the size of an element in
/// bytes; the strides of `loops` are in elements. The stream belongs to one of the two devices. Device::cpu() means
/// host memory of any kind.
void enqueue_blocks(Stream& stream, Device dst_device, void* dst, Device src_device, const void* src,
                    const CopyLoops& loops, std::size_t size);

}  // namespace lockstep::cuda
