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

/// Returns the address of the element `index` places after the first one.
inline std::byte* element(const TensorView& view, std::int64_t index) {
  return static_cast<std::byte*>(view.data) + index * static_cast<std::int64_t>(size_of(view.dtype));
}

/// A CudaContext's staging memory for copies: two halves of pinned memory, allocated at first use. Also knows which
/// other GPUs the device reaches. Lives as long as the context (Context::library). A half is filled again only when the
/// copy that emptied it is complete.
class Staging {
 public:
  /// Returns the Staging of this context, made on first use without memory or a stream.
  static Staging& of(Context& context);
  explicit Staging(Context& context) : context_(context), resource_(context.device()) {}

  void configure(const StagingOptions& options);
  [[nodiscard]] const StagingOptions& options() const { return options_; }

  /// True when the context's device has peer access to `other`'s device. Asks once for each device, and then enables
  /// peer access. Memory of a pool needs access to the pool itself, which this call also enables.
  [[nodiscard]] bool reaches(const TensorView& other);

  // Copies through the halves. Between host and device, types and strides may differ. Between devices, the innermost
  // axis must have stride 1 on both sides.
  void from_host(const TensorView& host, const TensorView& device);  ///< returns when the host memory was read
  void to_host(const TensorView& device, const TensorView& host);    ///< returns when the copy is complete
  void across(const TensorView& src, const TensorView& dst);         ///< between two GPUs; does not block

 private:
  /// Another GPU that this context copies from or to.
  struct Peer {
    Device device;
    bool direct;
    /// Made by the first copy through the host, as are the events.
    std::optional<Stream> stream;
    std::optional<Event> events[2];
  };
  struct Half {
    std::byte* data = nullptr;
    std::optional<Event> last;    ///< on the context's stream, after all work that used the half
    std::optional<Event> passed;  ///< for across(): the context's stream has filled or emptied the half
  };
  class Rest;

  Peer& peer(Device other);
  void allocate();  ///< allocates the halves unless they exist
  [[nodiscard]] TensorView staged(const CopyLoops& box, DType dtype, int half) const;
  void before_next_use(int half) { context_.stream().record(*halves_[half].last); }

  Context& context_;
  StagingOptions options_;
  PinnedMemoryResource resource_;
  std::optional<CpuContext> host_;  ///< fills and empties the halves
  Half halves_[2];
  std::optional<Event> begin_;
  Buffer memory_;            ///< freed after the stream is idle
  std::vector<Peer> peers_;  ///< destroyed before memory_, which their streams use
};

/// Enqueues dst = src on the copy engine, in as few calls as plan_blocks() finds. Strides are in elements of `size`
/// bytes. The stream belongs to one of the two devices; Device::cpu() means host memory of any kind.
void enqueue_blocks(Stream& stream, Device dst_device, void* dst, Device src_device, const void* src,
                    const CopyLoops& loops, std::size_t size);

}  // namespace lockstep::cuda
