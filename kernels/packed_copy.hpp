#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include <lockstep/kernels/grouped_copy.hpp>
#include <lockstep/runtime/memory/buffer.hpp>
#include <lockstep/runtime/memory/cuda_memory.hpp>
#include <lockstep/runtime/stream/context.hpp>
#include <lockstep/runtime/stream/stream.hpp>

namespace lockstep::ops {

struct PackedCopyOptions {
  /// Pairs of more bytes are copied one by one with copy(): there the call costs less than passing the block twice.
  std::size_t largest_packed = std::size_t{64} << 10;
  int threads = 0;  ///< that gather and scatter on the host; 0: what OpenMP would use here
};

/// Many small copies between the host and a GPU as one (docs/copies.md). To the GPU, host threads gather the sources in
/// a page-locked block, the copy engine moves it to a block on the GPU, and grouped_copy() spreads it there; from the
/// GPU the same backwards. N pairs are one cudaMemcpyAsync and one launch for 80 of them, where copies one by one are N
/// calls; bits are kept. Both blocks are made by the constructor and have room for all pairs that are packed, each
/// rounded up to 16 bytes: run() allocates nothing, unless a pageable pair above largest_packed is the first copy that
/// the context stages (configure_staging() makes that memory before). On a CpuContext run() is grouped_copy(), and
/// nothing is allocated.
///
/// The plan knows number, shapes and types of the pairs. Addresses and the direction may differ from run to run; one
/// direction in a run. Order of the pairs, and what may overlap: as in grouped_copy().
///
/// Belongs to one context, which must outlive it, and is used by one thread at a time, like the context. Destroying it
/// with a run under way is allowed: that waits for the stream. What a run reads and writes on the GPU is the caller's
/// to keep until the stream has passed it, as with every op.
class PackedCopy {
 public:
  /// The pairs are checked like those of run(). UsageError for options out of range, OutOfMemory; StateError while the
  /// context's stream is captured.
  PackedCopy(Context& context, std::span<const CopyPair> pairs, const PackedCopyOptions& options = {});
  PackedCopy(const PackedCopy&) = delete;
  PackedCopy& operator=(const PackedCopy&) = delete;
  ~PackedCopy() = default;

  /// dst = src for each pair, in the order of the context's stream on the GPU's side.
  ///
  /// Host to GPU: the sources are read before the call returns, and at once, so nothing on the stream may still be to
  /// write them. The call waits for nothing but the block: the one before must have left it, which on a stream with
  /// much work ahead of it takes as long as that (two plans in turn keep two under way). GPU to host: waits for the
  /// stream; the targets are complete when the call returns. Pairs above largest_packed go as copy() says: host memory
  /// that is pageable makes the call wait for the stream; page-locked sources must stay unchanged until the stream has
  /// passed. On a CpuContext the list and its tensors must live until the stream has passed.
  ///
  /// DeviceError unless each pair has one end on the host and one on the context's GPU (on a CpuContext: both on the
  /// host), all in one direction. ShapeError for another number of pairs or other shapes than the plan's, and for
  /// tensors that grouped_copy() refuses; DTypeError for types that differ from the plan's or between the two of a
  /// pair; StateError while the stream is captured, as a graph would keep the bytes of the capture. Nothing is copied
  /// then. An error of CUDA in the middle is thrown after the stream has come to rest; targets may be partly written,
  /// and the plan can be used again.
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
  /// Checks the pairs; true when they go to the GPU.
  bool check(std::span<const CopyPair> pairs) const;
  void to_gpu(std::span<const CopyPair> pairs);
  void to_host(std::span<const CopyPair> pairs);
  void copy_alone(std::span<const CopyPair> pairs);
  void move_on_gpu(std::span<const CopyPair> pairs, bool out_of_block);
  template <class F>
  void for_each_packed(F&& f) const;
  [[nodiscard]] TensorView host_block() const;
  [[nodiscard]] TensorView gpu_block() const;

  Context& context_;
  std::vector<Piece> pieces_;  ///< of all pairs
  std::vector<Packed> packed_;
  std::vector<std::size_t> alone_;
  std::size_t packed_bytes_ = 0;
  std::vector<CopyPair> on_gpu_;  ///< what move_on_gpu() fills in, one for each of packed_
  std::optional<CpuContext> host_;
  std::optional<PinnedMemoryResource> pinned_;
  std::optional<Event> read_;  ///< the copy engine has read the host's block
  Buffer gpu_memory_;
  Buffer host_memory_;  ///< given back first, which waits for the stream
};

}  // namespace lockstep::ops
