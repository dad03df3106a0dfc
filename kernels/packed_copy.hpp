#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include <lockstep/kernels/grouped_copy.hpp>
#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/memory/cuda_memory.hpp>
#include <lockstep/runtime/stream/stream.hpp>
#include <lockstep/runtime/tensor/buffer.hpp>

namespace lockstep::ops {

struct PackedCopyOptions {
  /// Larger pairs are copied one by one with copy(): for them a call costs less than passing through the block twice.
  std::size_t largest_packed = std::size_t{64} << 10;
  int threads = 0;  ///< threads that gather and scatter on the host; 0: OpenMP's default
};

/// Many small copies between the host and a GPU as one copy (docs/copies.md). To the GPU, host threads gather the
/// sources in a page-locked block, the copy engine moves the block to the GPU, and grouped_copy() distributes it there;
/// from the GPU the steps are reversed. N pairs cost one cudaMemcpyAsync and one launch per 80 pairs, instead of N
/// calls; bits are kept. The constructor makes both blocks, with room for all packed pairs, each rounded up to 16
/// bytes. So run() allocates nothing, unless a pageable pair above largest_packed is the first copy that the context
/// stages (configure_staging() makes that memory earlier). On a CpuContext run() is grouped_copy(), and nothing is
/// allocated.
///
/// The plan fixes number, shapes and types of the pairs. Addresses and direction may differ from run to run; a run has
/// one direction. For the order of the pairs and for overlaps see grouped_copy().
///
/// Belongs to one context, which must outlive it; one thread at a time uses both. It may be destroyed while a run is
/// under way: the destructor waits for the stream. The caller keeps the GPU memory of a run until the stream has passed
/// it, as with every op.
class PackedCopy {
 public:
  /// Checks the pairs as run() does. UsageError for options out of range, OutOfMemory; StateError while the context's
  /// stream is captured.
  PackedCopy(Context& context, std::span<const CopyPair> pairs, const PackedCopyOptions& options = {});
  PackedCopy(const PackedCopy&) = delete;
  PackedCopy& operator=(const PackedCopy&) = delete;
  ~PackedCopy() = default;

  /// dst = src for each pair, in the order of the context's stream on the GPU's side.
  ///
  /// Host to GPU: the call reads the sources at once, so no queued work may still write them. It waits only for the
  /// block, which the previous run must have left; on a stream with much work ahead that takes as long as that work
  /// (two plans used in turn keep two runs under way). GPU to host: waits for the stream; the targets are complete when
  /// the call returns. Pairs above largest_packed follow the rules of copy(): with pageable host memory the call waits
  /// for the stream; page-locked sources must stay unchanged until the stream has passed. On a CpuContext the list and
  /// its tensors must live until the stream has passed.
  ///
  /// DeviceError unless each pair has one end on the host and one on the context's GPU (on a CpuContext: both on the
  /// host), all in one direction. ShapeError for another number of pairs or other shapes than the plan's, and for
  /// tensors that grouped_copy() refuses. DTypeError for types that differ from the plan's or within a pair. StateError
  /// while the stream is captured, as a graph would keep the bytes of the capture. In all these cases nothing is
  /// copied. A CUDA error in the middle is thrown after the stream is idle; targets may be partly written, and the plan
  /// can be used again.
  void run(std::span<const CopyPair> pairs);

  /// Bytes that cross the link in one piece: the size of each of the two blocks.
  [[nodiscard]] std::size_t packed_bytes() const { return packed_bytes_; }

 private:
  struct Piece {
    Shape shape;
    DType dtype;
  };
  struct Packed {
    std::size_t pair;
    std::size_t offset;  ///< in both blocks
    std::size_t bytes;
  };
  /// Checks the pairs; true when they are copied to the GPU.
  bool check(std::span<const CopyPair> pairs) const;
  void to_gpu(std::span<const CopyPair> pairs);
  void to_host(std::span<const CopyPair> pairs);
  void copy_alone(std::span<const CopyPair> pairs);
  void move_on_gpu(std::span<const CopyPair> pairs, bool out_of_block);
  template <class F>
  void for_each_packed(F&& f) const;
  [[nodiscard]] TensorView host_block() const {
    return {host_memory_.data(), DType::u8, Device::cpu(), Shape{static_cast<std::int64_t>(packed_bytes_)}};
  }
  [[nodiscard]] TensorView gpu_block() const {
    return {gpu_memory_.data(), DType::u8, context_.device(), Shape{static_cast<std::int64_t>(packed_bytes_)}};
  }

  Context& context_;
  std::vector<Piece> pieces_;  ///< of all pairs
  std::vector<Packed> packed_;
  std::vector<std::size_t> alone_;
  std::size_t packed_bytes_ = 0;
  std::vector<CopyPair> on_gpu_;  ///< filled in by move_on_gpu(), one per element of packed_
  std::optional<CpuContext> host_;
  std::optional<PinnedMemoryResource> pinned_;
  std::optional<Event> read_;  ///< the copy engine has read the host's block
  Buffer gpu_memory_;
  Buffer host_memory_;  ///< freed first, which waits for the stream
};

}  // namespace lockstep::ops
