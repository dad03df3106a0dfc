#include "bench/support/timing.hpp"

#include <algorithm>
#include <chrono>
#include <vector>

#include <lockstep/runtime/copy.hpp>
#include <lockstep/runtime/tensor.hpp>

namespace lockstep::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_of(Context& context, std::size_t calls, const std::function<void()>& call) {
  const auto begin = Clock::now();
  for (std::size_t i = 0; i < calls; ++i) {
    call();
  }
  context.synchronize();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

double median_seconds(Context& context, double min_seconds, const std::function<void()>& call) {
  constexpr double kGroupSeconds = 1e-3;
  constexpr std::size_t kMinSamples = 5;
  seconds_of(context, 1, call);  // warm-up
  const double once = std::max(seconds_of(context, 1, call), 1e-9);
  const auto group = static_cast<std::size_t>(std::clamp(kGroupSeconds / once, 1.0, 1e5));
  std::vector<double> samples;
  double total = 0;
  while (samples.size() < kMinSamples || total < min_seconds) {
    const double seconds = seconds_of(context, group, call);
    samples.push_back(seconds / static_cast<double>(group));
    total += seconds;
  }
  std::nth_element(samples.begin(), samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2), samples.end());
  return samples[samples.size() / 2];
}

double copy_bandwidth(Context& context, double min_seconds) {
  const Shape shape{std::int64_t{128} << 20};
  const Tensor src = Tensor::zeros(context, shape, DType::u8);
  const Tensor dst = Tensor::zeros(context, shape, DType::u8);
  const double seconds = median_seconds(context, min_seconds, [&] { copy(context, src, dst); });
  return 2.0 * static_cast<double>(shape.numel()) / seconds;
}

}  // namespace lockstep::bench
