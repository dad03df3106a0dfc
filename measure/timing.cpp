#include "measure/timing.hpp"

#include <lockstep/runtime/tensor/copy.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>

#include "measure/measure.hpp"

namespace lockstep::measure {

double median_seconds(Context& context, double min_seconds, const std::function<void()>& call) {
  const MeasureOptions options{.target_seconds = min_seconds, .sample_seconds = 1e-3};
  return measure(options, {.start = call, .wait = [&] { context.synchronize(); }}).median();
}

double copy_bandwidth(Context& context, double min_seconds) {
  const Shape shape{std::int64_t{128} << 20};
  const Tensor src = Tensor::zeros(context, shape, DType::u8);
  const Tensor dst = Tensor::zeros(context, shape, DType::u8);
  const double seconds = median_seconds(context, min_seconds, [&] { copy(context, src, dst); });
  return 2.0 * static_cast<double>(shape.numel()) / seconds;
}

}  // namespace lockstep::measure
