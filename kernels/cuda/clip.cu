// Decides on the device whether and with which factor an update runs: reads squared_norm (squares) f64, and writes
// factor, skip, step and norm. The kernel has one thread, because each number depends on the previous number, and
// squared_norm has few entries, which are added in order. If the host decided, it would have to wait for the norm.
// The latency of the launch bounds the kernel, which moves 8 bytes per entry of squared_norm and a few scalars.

#include <lockstep/kernels/clip.hpp>
#include <lockstep/kernels/cuda/element.hpp>

namespace lockstep::ops::backend {
namespace {

/// Runs in one thread. squared_norm: (squares); all other pointers: scalars. A pointer is null if its view is not
/// given.
template <class T>
__global__ void clip_kernel(double max_norm, const double* squared_norm, int squares, const T* loss_scale,
                            const T* divisor, T* factor, std::int32_t* skip, std::int64_t* step, std::int64_t* skipped,
                            double* norm) {
  gpu::wait_for_earlier();
  const double by = divisor != nullptr ? static_cast<double>(*divisor) : 1.0;
  const bool weighs = by > 0 && by - by == 0;
  const double times = loss_scale != nullptr ? static_cast<double>(*loss_scale) : 1.0;
  const double scale = weighs ? 1.0 / (times * by) : 0.0;
  double sum = 0;
  for (int i = 0; squared_norm != nullptr && i < squares; ++i) {
    sum += squared_norm[i];
  }
  const double length = weighs ? sqrt(sum) * scale : 0.0;
  const bool finite = length - length == 0;
  const double most = max_norm / (length + fmin(1e-6, 1e-3 * length));
  *factor = finite && weighs ? static_cast<T>(max_norm > 0 && most < 1 ? scale * most : scale) : T{0};
  *skip = static_cast<std::int32_t>(weighs ? (finite ? Skip::no : Skip::not_finite) : Skip::no_weight);
  if (step != nullptr && finite && weighs) {
    *step += 1;
  }
  if (skipped != nullptr && !finite) {
    *skipped += 1;
  }
  if (norm != nullptr) {
    *norm = length;
  }
}

template <class T>
void run(CudaContext& context, double max_norm, const ClipScalars& s) {
  gpu::launch(clip_kernel<T>, dim3(1), dim3(1), 0, context.stream(), max_norm, gpu::data<const double>(s.squared_norm),
              s.squared_norm.given() ? static_cast<int>(s.squared_norm.numel()) : 0, gpu::data<const T>(s.loss_scale),
              gpu::data<const T>(s.divisor), gpu::data<T>(s.factor), gpu::data<std::int32_t>(s.skip),
              gpu::data<std::int64_t>(s.step), gpu::data<std::int64_t>(s.skipped), gpu::data<double>(s.norm));
}

}  // namespace

void clip_factor(CudaContext& context, double max_norm, const ClipScalars& scalars) {
  if (scalars.factor.dtype == DType::f64) {
    run<double>(context, max_norm, scalars);
  } else {
    run<float>(context, max_norm, scalars);
  }
}

}  // namespace lockstep::ops::backend
