#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <lockstep/kernels/packed_copy.hpp>
#include <lockstep/runtime/tensor/copy.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>

namespace lockstep::testing {

using Bytes = std::vector<std::byte>;

/// Bytes that depend on the seed; every bit pattern occurs, NaNs with payloads among them.
inline Bytes noise(std::size_t count, std::uint64_t seed) {
  Bytes bytes(count);
  std::uint64_t state = seed * 0x9e3779b97f4a7c15U + 1;
  for (std::byte& byte : bytes) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    byte = static_cast<std::byte>(state >> 32);
  }
  return bytes;
}

/// Tensors beside each other in memory that others own, a gap of so many elements before each.
struct Layout {
  std::vector<std::size_t> offsets;
  std::size_t bytes = 0;

  Layout(const std::vector<ops::CopyPair>& like, std::size_t gap) {
    for (const auto& [src, dst] : like) {
      const std::size_t size = size_of(src.dtype);
      offsets.push_back((bytes + size - 1) / size * size + gap * size);
      bytes = offsets.back() + src.bytes();
    }
    bytes += 64;
  }
};

/// A list of pairs with memory on both sides: images of the host's and the GPU's show what else was written.
class PackedCase {
 public:
  /// Shapes and types of `like` count, which needs no memory.
  PackedCase(Context& context, const std::vector<ops::CopyPair>& like, std::size_t host_gap, std::size_t gpu_gap)
      : context_(context), like_(like), host_(like, host_gap), gpu_(like, gpu_gap), host_memory_(host_.bytes) {
    gpu_memory_ = Tensor::zeros(context, Shape{static_cast<std::int64_t>(gpu_.bytes)}, DType::u8);
  }

  [[nodiscard]] std::vector<ops::CopyPair> to_gpu() { return pairs(true); }
  [[nodiscard]] std::vector<ops::CopyPair> to_host() { return pairs(false); }
  [[nodiscard]] Bytes& host() { return host_memory_; }

  [[nodiscard]] Bytes gpu() {
    Bytes bytes(gpu_.bytes);
    copy_now(context_, gpu_memory_, image(bytes));
    return bytes;
  }
  void set_gpu(Bytes bytes) { copy_now(context_, image(bytes), gpu_memory_); }

  /// What has to be in dst after a run.
  [[nodiscard]] Bytes expected_on_gpu(const Bytes& host, Bytes gpu) const {
    for (std::size_t i = 0; i < like_.size(); ++i) {
      std::memcpy(gpu.data() + gpu_.offsets[i], host.data() + host_.offsets[i], like_[i].src.bytes());
    }
    return gpu;
  }
  [[nodiscard]] Bytes expected_on_host(const Bytes& gpu, Bytes host) const {
    for (std::size_t i = 0; i < like_.size(); ++i) {
      std::memcpy(host.data() + host_.offsets[i], gpu.data() + gpu_.offsets[i], like_[i].src.bytes());
    }
    return host;
  }

 private:
  static TensorView image(Bytes& bytes) {
    return {bytes.data(), DType::u8, Device::cpu(), Shape{static_cast<std::int64_t>(bytes.size())}};
  }
  std::vector<ops::CopyPair> pairs(bool to_gpu) {
    std::vector<ops::CopyPair> pairs;
    for (std::size_t i = 0; i < like_.size(); ++i) {
      const auto& [src, dst] = like_[i];
      const TensorView host(host_memory_.data() + host_.offsets[i], src.dtype, Device::cpu(), src.shape);
      const TensorView gpu(static_cast<std::byte*>(gpu_memory_.view().data) + gpu_.offsets[i], src.dtype,
                           context_.device(), src.shape);
      pairs.push_back(to_gpu ? ops::CopyPair{host, gpu} : ops::CopyPair{gpu, host});
    }
    return pairs;
  }

  Context& context_;
  std::vector<ops::CopyPair> like_;
  Layout host_;
  Layout gpu_;
  Bytes host_memory_;
  Tensor gpu_memory_;
};

inline ops::CopyPair without_memory(const Shape& shape, DType dtype) {
  const TensorView view(nullptr, dtype, Device::cpu(), shape);
  return {view, view};
}

/// So many tensors of 1 to 5 f32.
inline std::vector<ops::CopyPair> small_tensors(std::int64_t count) {
  std::vector<ops::CopyPair> like;
  for (std::int64_t i = 0; i < count; ++i) {
    like.push_back(without_memory(Shape{i % 5 + 1}, DType::f32));
  }
  return like;
}

/// Every type, odd sizes, empty ones, more than one table of 80, sizes about 4096 bytes, and two of more than that.
inline std::vector<ops::CopyPair> mixed_tensors() {
  std::vector<ops::CopyPair> like;
  for (const DType dtype :
       {DType::f32, DType::u8, DType::f64, DType::bf16, DType::f16, DType::i32, DType::i64, DType::u64}) {
    for (const std::int64_t n : {1, 0, 7, 33}) {
      like.push_back(without_memory(Shape{n}, dtype));
    }
  }
  like.push_back(without_memory(Shape{}, DType::f16));
  for (const std::int64_t n : {4095, 4096, 4097, 9001}) {
    like.push_back(without_memory(Shape{n}, DType::u8));
  }
  for (const ops::CopyPair& pair : small_tensors(60)) {
    like.push_back(pair);
  }
  return like;
}

}  // namespace lockstep::testing
