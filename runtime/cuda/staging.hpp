#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <lockstep/runtime/detail/copy_blocks.hpp>
#include <lockstep/runtime/memory/buffer.hpp>
#include <lockstep/runtime/memory/cuda_memory.hpp>
#include <lockstep/runtime/stream/context.hpp>
#include <lockstep/runtime/tensor/copy.hpp>

namespace lockstep::cuda {

/// The address of an element, `index` elements behind the first one.
inline std::byte* element(const TensorView& view, std::int64_t index) {
  return static_cast<std::byte*>(view.data) + index * static_cast<std::int64_t>(size_of(view.dtype));
}

/// What a CudaContext keeps for its copies: two halves of pinned memory, made at their first use, and what is known of
/// the other GPUs. Lives as long as the context (Context::library). Its copies are exact about order: a half is filled
/// only when what emptied it before is done.
class Staging {
 public:
  /// That of the context, made on first use; this alone allocates no memory and no stream.
  static Staging& of(Context& context);
  explicit Staging(Context& context) : context_(context), resource_(context.device()) {}

  void configure(const StagingOptions& options);
  [[nodiscard]] const StagingOptions& options() const { return options_; }

  /// The context's device reaches the other one's memory; asked once, and enabled then.
  [[nodiscard]] bool reaches(Device other);

  // Copies through the halves. Types may differ between host and device; strides may be anything there, and between
  // devices where there are rows.
  void from_host(const TensorView& host, const TensorView& device);  ///< returns when the host's memory was read
  void to_host(const TensorView& device, const TensorView& host);    ///< returns when the copy is complete
  void across(const TensorView& src, const TensorView& dst);         ///< between two GPUs; does not block

 private:
  /// Another GPU that this context copies from or to.
  struct Peer {
    Device device;
    bool direct;
    std::optional<Stream> stream;  ///< made with the events by the first copy through the host
    std::optional<Event> events[2];
  };
  struct Half {
    std::byte* data = nullptr;
    std::optional<Event> last;    ///< on the context's stream: everything that used the half
    std::optional<Event> passed;  ///< of across(): filled or emptied by the context's stream
  };
  class Rest;

  Peer& peer(Device other);
  void allocate();  ///< the halves, unless they are there
  [[nodiscard]] TensorView staged(const CopyLoops& box, DType dtype, int half) const;
  void before_next_use(int half) { context_.stream().record(*halves_[half].last); }

  Context& context_;
  StagingOptions options_;
  PinnedMemoryResource resource_;
  std::optional<CpuContext> host_;  ///< fills and empties the halves
  Half halves_[2];
  std::optional<Event> begin_;
  Buffer memory_;            ///< given back after the stream has come to rest
  std::vector<Peer> peers_;  ///< destroyed before the memory: their streams use it
};

/// Enqueues dst = src by the copy engine, in as few calls as plan_blocks() finds. Strides in elements of `size` bytes.
/// The stream is on one of the devices; the CPU stands for any host memory.
void enqueue_blocks(Stream& stream, Device dst_device, void* dst, Device src_device, const void* src,
                    const CopyLoops& loops, std::size_t size);

}  // namespace lockstep::cuda
