#include <lockstep/runtime/tensor/tensor.hpp>

#include <cstring>
#include <utility>

#include <lockstep/runtime/detail/cuda_backend.hpp>
#include <lockstep/runtime/tensor/buffer.hpp>
#include <lockstep/runtime/tensor/copy.hpp>

namespace lockstep {
namespace {

/// Owns memory of the host program for the tensors that share this memory. The destructor calls the memory's release
/// function.
class Released {
 public:
  explicit Released(std::function<void()> release) : release_(std::move(release)) {}
  Released(const Released&) = delete;
  Released& operator=(const Released&) = delete;
  ~Released() {
    if (release_) {
      release_();
    }
  }

 private:
  std::function<void()> release_;
};

}  // namespace

Tensor Tensor::empty(Context& context, const Shape& shape, DType dtype) {
  Tensor tensor;
  tensor.view_ = TensorView(nullptr, dtype, context.device(), shape);
  auto buffer = std::make_shared<Buffer>(tensor.view_.bytes(), context);
  tensor.view_.data = buffer->data();
  tensor.owner_ = std::move(buffer);
  return tensor;
}

Tensor Tensor::zeros(Context& context, const Shape& shape, DType dtype) {
  Tensor tensor = empty(context, shape, dtype);
  const std::size_t bytes = tensor.view_.bytes();
  if (bytes > 0) {
    if (context.device().kind == DeviceKind::cuda) {
      detail::cuda_zero(context, tensor.view_.data, bytes);
    } else {
      // The task shares ownership of the memory, because the tensor may be destroyed before a worker runs the task.
      context.stream().enqueue(
          [data = tensor.view_.data, bytes, owner = tensor.owner_] { std::memset(data, 0, bytes); });
    }
  }
  return tensor;
}

Tensor Tensor::adopt(const TensorView& view, std::function<void()> release) {
  Tensor tensor;
  tensor.view_ = view;
  tensor.owner_ = std::make_shared<Released>(std::move(release));
  return tensor;
}

namespace {

/// Keeps both tensors alive until a worker has run the copy: a task enqueued after the copy holds them. CUDA needs no
/// such task, because CUDA memory is freed in the stream's order.
void keep_until_passed(Stream& stream, const Tensor& source, const Tensor& result) {
  if (stream.device().kind == DeviceKind::cpu && !stream.is_inline()) {
    stream.enqueue([source, result] {});
  }
}

}  // namespace

Tensor Tensor::to(Context& context, DType dtype) const {
  if (device() == context.device() && dtype == view_.dtype) {
    return *this;
  }
  Tensor result = empty(context, shape(), dtype);
  copy(context, view_, result.view_);
  keep_until_passed(context.stream(), *this, result);
  return result;
}

Tensor Tensor::to(Context& target, Context& carrier) const {
  if (device() == target.device()) {
    return *this;
  }
  Tensor result = empty(target, shape(), dtype());
  copy(carrier, view_, result.view_);
  keep_until_passed(carrier.stream(), *this, result);
  return result;
}

}  // namespace lockstep
