// Defines the kernels that the gradient reducer calls, as host functions on the stand-in's streams, because only nvcc
// can compile the real kernels. The real kernels have tests of their own.
#include <lockstep/kernels/add.hpp>
#include <lockstep/kernels/fill.hpp>
#include <lockstep/kernels/low_rank.hpp>
#include <lockstep/kernels/matmul.hpp>
#include <lockstep/kernels/reduce.hpp>
#include <lockstep/kernels/strided_copy.hpp>

#include <lockstep/runtime/base/error.hpp>

#include "control.hpp"

namespace lockstep::ops {
namespace {

template <class From, class To>
void convert(const TensorView& src, const TensorView& dst) {
  const auto* from = static_cast<const From*>(src.data);  // shape (n)
  auto* to = static_cast<To*>(dst.data);                  // shape (n)
  for (std::int64_t i = 0; i < src.numel(); ++i) {
    to[i] = To(static_cast<float>(from[i]));
  }
}

}  // namespace

void strided_copy(Context& context, const TensorView& src, const TensorView& dst) {
  const bool narrows = src.dtype == DType::f32;
  const DType other = narrows ? dst.dtype : src.dtype;
  require<DTypeError>((narrows || dst.dtype == DType::f32) && (other == DType::bf16 || other == DType::f16),
                      "stand-in for strided_copy: ", src.dtype, " to ", dst.dtype);
  standin::launch(context.stream().cuda_handle(), [=](std::span<const standin::DeviceMemory>) {
    if (other == DType::bf16) {
      narrows ? convert<float, BFloat16>(src, dst) : convert<BFloat16, float>(src, dst);
    } else {
      narrows ? convert<float, Float16>(src, dst) : convert<Float16, float>(src, dst);
    }
  });
}

void add(Context& context, const TensorView& a, const TensorView& b, const TensorView& out) {
  require<DTypeError>(out.dtype == DType::f32, "stand-in for add: ", out.dtype);
  standin::launch(context.stream().cuda_handle(), [=](std::span<const standin::DeviceMemory>) {
    for (std::int64_t i = 0; i < out.numel(); ++i) {
      static_cast<float*>(out.data)[i] = static_cast<const float*>(a.data)[i] + static_cast<const float*>(b.data)[i];
    }
  });
}

std::size_t reduce_rows_workspace_bytes(const Context& /*context*/, const TensorView& /*x*/) {
  return 0;
}

void reduce_rows(Context& context, const TensorView& x, GradMode mode, const TensorView& sums,
                 const TensorView& /*workspace*/) {
  require<UsageError>(mode == GradMode::overwrite && sums.dtype == DType::f32, "stand-in for reduce_rows: other sums");
  standin::launch(context.stream().cuda_handle(), [=](std::span<const standin::DeviceMemory>) {
    const std::int64_t n = sums.numel();
    for (std::int64_t i = 0; i < n; ++i) {
      double sum = 0;
      for (std::int64_t row = 0; row < x.shape[0]; ++row) {
        const std::int64_t at = row * n + i;
        sum += x.dtype == DType::f32    ? static_cast<const float*>(x.data)[at]
               : x.dtype == DType::bf16 ? static_cast<float>(static_cast<const BFloat16*>(x.data)[at])
                                        : static_cast<float>(static_cast<const Float16*>(x.data)[at]);
      }
      static_cast<float*>(sums.data)[i] = static_cast<float>(sum);
    }
  });
}

// Defines the kernels of low-rank sums as functions that throw. No test on the stand-ins calls them, but the table of
// sums refers to them. plan_matmul() and matmul() are weak symbols, so a program that has real matrix products links
// the real functions instead.
namespace {

[[noreturn]] void refuse(const char* name) {
  throw UnsupportedError(concat("stand-in for ", name, ": there is none"));
}

}  // namespace

void fill(Context& /*context*/, double /*value*/, const TensorView& /*out*/) {
  refuse("fill");
}
[[gnu::weak]] std::unique_ptr<MatmulPlan> plan_matmul(Context& /*context*/, const MatmulDesc& /*desc*/,
                                                      const std::string& /*choice*/) {
  refuse("plan_matmul");
}
[[gnu::weak]] void matmul(Context& /*context*/, const MatmulPlan& /*plan*/, const TensorView& /*a*/,
                          const TensorView& /*b*/, const TensorView& /*bias*/, const TensorView& /*out*/,
                          const TensorView& /*workspace*/) {
  refuse("matmul");
}
void orthonormalise(Context& /*context*/, double /*epsilon*/, const TensorView& /*p*/, const TensorView& /*columns*/) {
  refuse("orthonormalise");
}
void low_rank_residual(Context& /*context*/, const TensorView& /*m*/, const TensorView& /*p*/, const TensorView& /*q*/,
                       const TensorView& /*columns*/, const TensorView& /*error*/) {
  refuse("low_rank_residual");
}
void keep_columns(Context& /*context*/, const TensorView& /*q*/, const TensorView& /*columns*/,
                  const TensorView& /*out*/) {
  refuse("keep_columns");
}

}  // namespace lockstep::ops
