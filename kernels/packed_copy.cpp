#include <lockstep/kernels/packed_copy.hpp>

#include <cstdint>
#include <cstring>
#include <string_view>

#include <lockstep/runtime/base/align.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/context/parallel.hpp>
#include <lockstep/runtime/stream/graph.hpp>
#include <lockstep/runtime/stream/synchronisation.hpp>
#include <lockstep/runtime/tensor/copy.hpp>

namespace lockstep::ops {
namespace {

constexpr std::size_t kBoundary = 16;                          // alignment of the GPU's widest accesses
constexpr std::size_t kMostPacked = std::size_t{1} << 30;      // of one pair
constexpr std::int64_t kGrainBytes = std::int64_t{256} << 10;  // moved by one thread of the host

std::string_view direction(bool to_gpu) {
  return to_gpu ? "from the host to the GPU" : "from the GPU to the host";
}

}  // namespace

PackedCopy::PackedCopy(Context& context, std::span<const CopyPair> pairs, const PackedCopyOptions& options)
    : context_(context) {
  require<UsageError>(options.largest_packed <= kMostPacked, "PackedCopy: largest_packed is ", options.largest_packed,
                      ", expected at most ", kMostPacked);
  require<UsageError>(options.threads >= 0, "PackedCopy: threads is ", options.threads, ", expected at least 0");
  pieces_.reserve(pairs.size());
  for (const CopyPair& pair : pairs) {
    pieces_.push_back({pair.src.shape, pair.src.dtype});
  }
  check(pairs);
  if (context.device().kind == DeviceKind::cpu) {
    return;
  }
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const std::size_t bytes = pairs[i].src.bytes();
    if (bytes > options.largest_packed) {
      alone_.push_back(i);
    } else if (bytes > 0) {
      packed_.push_back({.pair = i, .offset = packed_bytes_, .bytes = bytes});
      packed_bytes_ += align_up(bytes, kBoundary);
    }
  }
  if (packed_.empty()) {
    return;
  }
  on_gpu_.resize(packed_.size());
  host_.emplace(CpuContextOptions{.threads = options.threads});
  gpu_memory_ = Buffer(packed_bytes_, context);
  pinned_.emplace(context.device());
  host_memory_ = Buffer(packed_bytes_, *pinned_, context.stream());
  read_.emplace(context.device());
}

bool PackedCopy::check(std::span<const CopyPair> pairs) const {
  require<ShapeError>(pairs.size() == pieces_.size(), "PackedCopy: ", pairs.size(), " pairs, expected the plan's ",
                      pieces_.size());
  const Device here = context_.device();
  const bool on_host = here.kind == DeviceKind::cpu;
  const bool to_gpu = !on_host && !pairs.empty() && pairs.front().src.device.kind == DeviceKind::cpu;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const auto& [src, dst] = pairs[i];
    try {
      const Device from = to_gpu ? Device::cpu() : here;
      const Device to = to_gpu || on_host ? here : Device::cpu();
      require<DeviceError>(on_host || i == 0 || src.device != to || dst.device != from, "PackedCopy: ", src, " goes ",
                           direction(!to_gpu), ", and the pairs before go ", direction(to_gpu));
      require_on(from, "PackedCopy: src", {&src});
      require_on(to, "PackedCopy: dst", {&dst});
      require<ShapeError>(src.shape == pieces_[i].shape, "PackedCopy: src is ", src.shape, ", expected the plan's ",
                          pieces_[i].shape);
      require<DTypeError>(src.dtype == pieces_[i].dtype, "PackedCopy: src is ", src.dtype, ", expected the plan's ",
                          pieces_[i].dtype);
      require_copy_pair("PackedCopy", src, dst);
    } catch (Error& e) {
      e.annotate(concat("pair ", i));
      throw;
    }
  }
  return to_gpu;
}

/// Calls f(packed, its place in the host's block) on the host's threads. The threads share the bytes evenly, not the
/// pairs.
template <class F>
void PackedCopy::for_each_packed(F&& f) const {
  parallel_ranges(*host_, static_cast<std::int64_t>(packed_bytes_), kGrainBytes,
                  [&](std::int64_t begin, std::int64_t end) {
                    auto at = std::partition_point(packed_.begin(), packed_.end(), [&](const Packed& packed) {
                      return packed.offset < static_cast<std::size_t>(begin);
                    });
                    for (; at != packed_.end() && at->offset < static_cast<std::size_t>(end); ++at) {
                      f(*at, host_memory_.data() + at->offset);
                    }
                  });
}

void PackedCopy::move_on_gpu(std::span<const CopyPair> pairs, bool out_of_block) {
  for (std::size_t i = 0; i < packed_.size(); ++i) {
    const auto& [src, dst] = pairs[packed_[i].pair];
    const TensorView inside(gpu_memory_.data() + packed_[i].offset, src.dtype, context_.device(), src.shape);
    on_gpu_[i] = out_of_block ? CopyPair{inside, dst} : CopyPair{src, inside};
  }
  grouped_copy(context_, on_gpu_);
}

void PackedCopy::copy_alone(std::span<const CopyPair> pairs) {
  for (const std::size_t i : alone_) {
    copy(context_, pairs[i].src, pairs[i].dst);
  }
}

void PackedCopy::to_gpu(std::span<const CopyPair> pairs) {
  copy_alone(pairs);  // the engine copies the last of them while the block is filled
  if (packed_.empty()) {
    return;
  }
  if (!read_->complete()) {
    const SyncScope scope(context_.stream(), "PackedCopy::run", SyncReason::host_copy, packed_bytes_);
    read_->synchronize();
  }
  for_each_packed(
      [&](const Packed& packed, std::byte* block) { std::memcpy(block, pairs[packed.pair].src.data, packed.bytes); });
  copy(context_, host_block(), gpu_block());
  context_.stream().record(*read_);
  move_on_gpu(pairs, true);
}

void PackedCopy::to_host(std::span<const CopyPair> pairs) {
  const SyncScope scope(context_.stream(), "PackedCopy::run", SyncReason::host_copy, packed_bytes_);
  if (!packed_.empty()) {
    move_on_gpu(pairs, false);
    copy(context_, gpu_block(), host_block());
  }
  copy_alone(pairs);
  context_.synchronize();
  if (!packed_.empty()) {
    for_each_packed([&](const Packed& packed, const std::byte* block) {
      std::memcpy(pairs[packed.pair].dst.data, block, packed.bytes);
    });
  }
}

void PackedCopy::run(std::span<const CopyPair> pairs) {
  const bool goes_to_gpu = check(pairs);
  if (context_.device().kind == DeviceKind::cpu) {
    grouped_copy(context_, pairs);
    return;
  }
  if (packed_.empty() && alone_.empty()) {
    return;
  }
  require<StateError>(!is_capturing(context_.stream()),
                      "PackedCopy: the stream is being captured; a graph copies page-locked memory as it is");
  try {
    goes_to_gpu ? to_gpu(pairs) : to_host(pairs);
  } catch (...) {
    // The engine may still use the block, or the caller's memory, with no event recorded after it.
    try {
      context_.synchronize();
    } catch (const Error&) {  // the first error says what went wrong
    }
    throw;
  }
}

}  // namespace lockstep::ops
