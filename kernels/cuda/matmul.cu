// Computes c (products, m, n) = function(a b + bias) in plain f32 tiles, without tensor cores, for a (products, m, k)
// and b (products, k, n), each of which may be transposed. nn::ChoiceVerifier compares cuBLASLt's results with the
// results of this code. Builds without cuBLASLt use this code for all products on a GPU.
//
// tile_product.hpp has the tiling: 256 threads and 64 x 64 outputs per block, 16 terms at a time through shared memory,
// 4 x 4 outputs of a thread in registers. A long sum with few outputs is split. Strides handle transposed operands in
// place, and loads run along the axis that is contiguous. F32 arithmetic and shared memory bound the kernel: each
// element that a block loads is used in 64 multiply-adds.

#include <string>
#include <vector>

#include <lockstep/kernels/cuda/tile_product.hpp>
#include <lockstep/kernels/detail/providers.hpp>

namespace lockstep::ops::plain_cuda {
namespace {

using std::int64_t;

/// One operand, a or b, of all products: a matrix per product, read in place.
template <class T>
struct Strided {
  const T* from;
  int64_t product_stride, line_stride, term_stride;

  __device__ const T* line(int64_t product, int64_t index) const {
    return from + product * product_stride + index * line_stride;
  }
  __device__ int64_t term(int64_t index) const { return index * term_stride; }
  __device__ float load(const T* line, int64_t term) const { return gpu::to_float(line[term]); }
  __device__ bool along_sum() const { return term_stride == 1; }
};

// The class is not final: otherwise the destructor could be inlined, and coverage would count it as never called.
class Plan : public MatmulPlan {
 public:
  Plan(Context& context, const MatmulDesc& d)
      : MatmulPlan(context.device(), d), sizes_(gpu::product_sizes(d.products(), d.m, d.n, d.k)) {}

  std::size_t workspace_bytes() const override { return sizes_.workspace_bytes(); }
  bool deterministic() const override { return true; }
  std::string choice() const override { return std::string(kMatmul.name); }

  void run(Context& context, const TensorView& a, const TensorView& b, const TensorView& bias, const TensorView& c,
           const TensorView& workspace) const override {
    gpu::visit_element(desc().dtype, "matmul", [&]<class T>(std::type_identity<T>) {
      const MatmulDesc& d = desc();
      const Strided<T> rows{gpu::data<const T>(a), d.m * d.k, d.transpose_a ? 1 : d.k, d.transpose_a ? d.m : 1};
      const Strided<T> columns{gpu::data<const T>(b), d.k * d.n, d.transpose_b ? d.k : 1, d.transpose_b ? 1 : d.n};
      const auto multiply_with = [&]<class Out, class F>(Out* to, F function) {
        const gpu::ProductOutput<Out, F> out{
            to, d.m * d.n, d.n, gpu::data<const float>(bias), 0, d.grad_mode == GradMode::accumulate, function};
        gpu::tile_product(static_cast<CudaContext&>(context), sizes_, rows, columns, out, gpu::data<float>(workspace));
      };
      const auto multiply = [&](auto* to) {
        if (d.activation == Activation::identity) {
          multiply_with(to, gpu::Activated<Activation::identity>());
        } else {
          multiply_with(to, gpu::AnyActivation{d.activation});
        }
      };
      if (d.accumulator_output) {
        multiply(gpu::data<float>(c));
      } else {
        multiply(gpu::data<T>(c));
      }
    });
  }

 private:
  gpu::ProductSizes sizes_;
};

bool supports(const MatmulDesc& desc) {
  return desc.dtype == DType::f32 || desc.dtype == DType::bf16 || desc.dtype == DType::f16;
}

std::vector<std::string> choices(Context& /*context*/, const MatmulDesc& desc) {
  return supports(desc) ? std::vector<std::string>{std::string(kMatmul.name)} : std::vector<std::string>{};
}

std::unique_ptr<MatmulPlan> plan(Context& context, const MatmulDesc& desc, const std::string& choice) {
  require<UsageError>(choice == kMatmul.name, "matmul: choice is '", choice, "', expected '", kMatmul.name, "'");
  require<UnsupportedError>(supports(desc), "matmul: dtype is ", desc.dtype, ", expected f32, bf16 or f16 with 'cuda'");
  return std::make_unique<Plan>(context, desc);
}

}  // namespace

constinit const MatmulProvider kMatmul{"cuda", DeviceKind::cuda, choices, plan};

}  // namespace lockstep::ops::plain_cuda
