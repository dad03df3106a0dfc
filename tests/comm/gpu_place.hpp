#pragma once

#include <memory>

#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/tensor/copy.hpp>

#include "communicator_data.hpp"

namespace lockstep::comm::cases {

/// The memory of one rank's GPU, or of a simulated GPU. Each test defines add_one(), because the tests of comm have no
/// kernels.
class GpuPlace : public Place {
 public:
  explicit GpuPlace(Device device) : context_(std::make_unique<CudaContext>(device)) {}
  [[nodiscard]] Device device() const override { return context_->device(); }
  [[nodiscard]] Device elsewhere() const override { return Device::cpu(); }
  [[nodiscard]] Tensor upload(std::span<const std::byte> image) const override {
    const Shape shape{static_cast<std::int64_t>(image.size())};
    Tensor there = Tensor::empty(*context_, shape, DType::u8);
    copy(*context_, TensorView(const_cast<std::byte*>(image.data()), DType::u8, Device::cpu(), shape), there);
    context_->synchronize();
    return there;
  }
  void download(const Tensor& there, std::span<std::byte> image) const override {
    copy(*context_, there, TensorView(image.data(), DType::u8, Device::cpu(), there.shape()));
    context_->synchronize();
  }
  void add_one(Stream& stream, const TensorView& view) const override = 0;

 protected:
  [[nodiscard]] Context& context() const { return *context_; }

 private:
  std::unique_ptr<CudaContext> context_;
};

}  // namespace lockstep::comm::cases
