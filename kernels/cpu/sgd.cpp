#include <lockstep/kernels/sgd.hpp>

#include <algorithm>

#include <lockstep/runtime/parallel.hpp>

namespace lockstep::ops::backend {
namespace {

enum class Rule : unsigned char { plain, momentum, nesterov };

template <class T>
struct Coefficients {
  T learning_rate;
  T weight_decay;
  T momentum;
};

template <Rule kRule, class T>
void update(const Coefficients<T> k, std::int64_t count, T* __restrict p, const T* __restrict gradient,
            T* __restrict v) {
  for (std::int64_t i = 0; i < count; ++i) {
    const T g = gradient[i] + k.weight_decay * p[i];
    T step = g;
    if constexpr (kRule != Rule::plain) {
      v[i] = k.momentum * v[i] + g;
      step = kRule == Rule::nesterov ? g + k.momentum * v[i] : v[i];
    }
    p[i] -= k.learning_rate * step;
  }
}

template <Rule kRule, class T>
void run(const CpuContext& context, const SgdOptions& options, std::span<const ArenaSegment> segments,
         std::int64_t arena_begin, double learning_rate, std::int64_t n, T* p, const T* g, T* v) {
  parallel_ranges(context, n, 16384, [=](std::int64_t begin, std::int64_t end) {
    const std::int64_t first = arena_begin + begin;
    const std::int64_t last = arena_begin + end;
    auto s = std::partition_point(segments.begin(), segments.end(),
                                  [=](const ArenaSegment& segment) { return segment.offset + segment.count <= first; });
    for (; s != segments.end() && s->offset < last; ++s) {
      if (!s->trainable) {
        continue;
      }
      const std::int64_t from = std::max(s->offset, first) - arena_begin;
      const std::int64_t to = std::min(s->offset + s->count, last) - arena_begin;
      const Coefficients<T> k{static_cast<T>(learning_rate * s->learning_rate_scale), static_cast<T>(s->weight_decay),
                              static_cast<T>(options.momentum)};
      update<kRule>(k, to - from, p + from, g + from, kRule == Rule::plain ? nullptr : v + from);
    }
  });
}

}  // namespace

void sgd_update(CpuContext& context, const SgdOptions& options, std::span<const ArenaSegment> segments,
                std::int64_t begin, const TensorView& learning_rate, const TensorView& parameters,
                const TensorView& gradients, const TensorView& velocity) {
  const double rate = *learning_rate.as<double>();
  visit_compute(parameters.dtype, "sgd_update", [&]<class T>(std::type_identity<T>) {
    const std::int64_t n = parameters.numel();
    T* p = parameters.as<T>();
    const T* g = gradients.as<T>();
    if (options.momentum == 0) {
      run<Rule::plain, T>(context, options, segments, begin, rate, n, p, g, nullptr);
    } else if (options.nesterov) {
      run<Rule::nesterov, T>(context, options, segments, begin, rate, n, p, g, velocity.as<T>());
    } else {
      run<Rule::momentum, T>(context, options, segments, begin, rate, n, p, g, velocity.as<T>());
    }
  });
}

}  // namespace lockstep::ops::backend
