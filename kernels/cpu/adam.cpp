#include <lockstep/kernels/adam.hpp>

#include <cmath>

#include <lockstep/kernels/cpu/arena.hpp>

namespace lockstep::ops::backend {
namespace {

template <class T>
struct Coefficients {
  T step_size;     // learning rate / (1 - beta1^t)
  T weight_decay;  // 1 - learning rate * weight decay if kDecoupled, otherwise the weight decay
  T beta1, new1;   // new1 = 1 - beta1
  T beta2, new2;
  T inverse_root;  // 1 / sqrt(1 - beta2^t)
  T epsilon;
};

template <bool kDecoupled, class T>
void update_run(const Coefficients<T> k, std::int64_t count, T* __restrict p, const T* __restrict gradient,
                T* __restrict m, T* __restrict v) {
  for (std::int64_t i = 0; i < count; ++i) {
    T g = gradient[i];
    T before = p[i];
    if constexpr (kDecoupled) {
      before *= k.weight_decay;
    } else {
      g += k.weight_decay * before;
    }
    m[i] = k.beta1 * m[i] + k.new1 * g;
    v[i] = k.beta2 * v[i] + k.new2 * (g * g);
    p[i] = before - k.step_size * (m[i] / (std::sqrt(v[i]) * k.inverse_root + k.epsilon));
  }
}

template <bool kDecoupled, class T>
void run(const CpuContext& context, const AdamOptions& options, const ArenaUpdate& update, std::int64_t step, T* m,
         T* v) {
  const auto t = static_cast<double>(std::max<std::int64_t>(step, 1));
  const double correction1 = 1 - std::pow(options.beta1, t);
  const double inverse_root = 1 / std::sqrt(1 - std::pow(options.beta2, t));
  update_arena<T>(
      context, update,
      [=](const ArenaSegment& segment, double rate, std::int64_t first, std::int64_t count, T* p, const T* g) {
        const double decay = segment.weight_decay;
        const Coefficients<T> k{.step_size = static_cast<T>(rate / correction1),
                                .weight_decay = static_cast<T>(kDecoupled ? 1 - rate * decay : decay),
                                .beta1 = static_cast<T>(options.beta1),
                                .new1 = static_cast<T>(1 - options.beta1),
                                .beta2 = static_cast<T>(options.beta2),
                                .new2 = static_cast<T>(1 - options.beta2),
                                .inverse_root = static_cast<T>(inverse_root),
                                .epsilon = static_cast<T>(options.epsilon)};
        update_run<kDecoupled>(k, count, p, g, m + first, v + first);
      });
}

}  // namespace

void adam_update(CpuContext& context, const AdamOptions& options, const ArenaUpdate& update, const TensorView& step,
                 const TensorView& first_moment, const TensorView& second_moment) {
  const std::int64_t t = *step.as<std::int64_t>();
  visit_compute(update.parameters.dtype, "adam_update", [&]<class T>(std::type_identity<T>) {
    if (options.decoupled) {
      run<true>(context, options, update, t, first_moment.as<T>(), second_moment.as<T>());
    } else {
      run<false>(context, options, update, t, first_moment.as<T>(), second_moment.as<T>());
    }
  });
}

}  // namespace lockstep::ops::backend
