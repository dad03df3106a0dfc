// Updates the loss scale from scalars on the device: skip, scale and good, one element each.
// One block of one thread: the rule is a few dependent f64 operations. It runs on the device, so that the host does not
// wait for `skip` and a captured step replays correctly.
// The latency of the launch bounds the kernel, which moves at most 36 bytes.

#include <lockstep/kernels/cuda/element.hpp>
#include <lockstep/kernels/loss_scale.hpp>

namespace lockstep::ops::backend {
namespace {

/// Runs in one thread. `skip`, `scale` and `good` point to scalars.
template <class T>
__global__ void loss_scale_kernel(double growth, double backoff, std::int64_t interval, double least, double most,
                                  const std::int32_t* skip, T* scale, std::int64_t* good) {
  gpu::wait_for_earlier();
  const auto value = static_cast<double>(*scale);
  const std::int64_t count = *good + 1;
  const auto why = static_cast<Skip>(*skip);
  if (why == Skip::no_weight) {
    return;
  }
  if (why != Skip::no) {
    const double smaller = value * backoff;
    *scale = static_cast<T>(smaller < least ? least : smaller);
    *good = 0;
  } else if (count >= interval) {
    const double larger = value * growth;
    *scale = static_cast<T>(larger > most ? most : larger);
    *good = 0;
  } else {
    *good = count;
  }
}

template <class T>
void run(CudaContext& context, const LossScaleOptions& o, const TensorView& skip, const TensorView& scale,
         const TensorView& good) {
  gpu::launch(loss_scale_kernel<T>, dim3(1), dim3(1), 0, context.stream(), o.growth, o.backoff, o.interval, o.least,
              o.most, gpu::data<const std::int32_t>(skip), gpu::data<T>(scale), gpu::data<std::int64_t>(good));
}

}  // namespace

void loss_scale_update(CudaContext& context, const LossScaleOptions& options, const TensorView& skip,
                       const TensorView& scale, const TensorView& good) {
  if (scale.dtype == DType::f64) {
    run<double>(context, options, skip, scale, good);
  } else {
    run<float>(context, options, skip, scale, good);
  }
}

}  // namespace lockstep::ops::backend
