#include <lockstep/kernels/add.hpp>
#include <lockstep/kernels/cuda/elementwise.hpp>

namespace lockstep::ops::backend {
namespace {

struct Sum {
  __device__ float operator()(float a, float b) const { return a + b; }
};

}  // namespace

void add(CudaContext& context, const TensorView& a, const TensorView& b, const TensorView& out) {
  gpu::visit_element(out.dtype, "add", [&]<class T>(std::type_identity<T>) {
    gpu::elementwise(context, Sum{}, out.numel(), gpu::data<T>(out), gpu::data<const T>(a), gpu::data<const T>(b));
  });
}

}  // namespace lockstep::ops::backend
