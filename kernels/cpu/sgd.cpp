#include <lockstep/kernels/sgd.hpp>

#include <lockstep/kernels/cpu/arena.hpp>

namespace lockstep::ops::backend {
namespace {

template <class T>
struct Coefficients {
  T learning_rate;
  T weight_decay;
  T momentum;
  T ratio;
};

enum class Rule : unsigned char { plain, momentum, nesterov };

template <Rule kRule, bool kRatio, class T>
void update_run(const Coefficients<T> k, std::int64_t count, T* __restrict p, const T* __restrict gradient,
                T* __restrict v) {
  for (std::int64_t i = 0; i < count; ++i) {
    T g = gradient[i] + k.weight_decay * p[i];
    if constexpr (kRatio) {
      g *= k.ratio;
    }
    T step = g;
    if constexpr (kRule != Rule::plain) {
      v[i] = k.momentum * v[i] + g;
      step = kRule == Rule::nesterov ? g + k.momentum * v[i] : v[i];
    }
    p[i] -= k.learning_rate * step;
  }
}

}  // namespace

void momentum_update(CpuContext& context, const ArenaUpdate& update, const MomentumOptions& options,
                     const TensorView& velocity, const double* ratios) {
  visit_compute(update.parameters.dtype, "momentum_update", [&]<class T>(std::type_identity<T>) {
    T* v = options.momentum == 0 ? nullptr : velocity.as<T>();
    const auto run = [&]<Rule kRule, bool kRatio>(std::integral_constant<Rule, kRule>, std::bool_constant<kRatio>) {
      update_arena<T>(
          context, update,
          [&](const ArenaSegment& segment, double rate, std::int64_t first, std::int64_t count, T* p, const T* g) {
            const Coefficients<T> k{static_cast<T>(rate), static_cast<T>(segment.weight_decay),
                                    static_cast<T>(options.momentum),
                                    static_cast<T>(kRatio ? ratios[&segment - update.segments.data()] : 1)};
            update_run<kRule, kRatio>(k, count, p, g, kRule == Rule::plain ? nullptr : v + first);
          });
    };
    const auto visit = [&](auto with_ratio) {
      if (options.momentum == 0) {
        run(std::integral_constant<Rule, Rule::plain>{}, with_ratio);
      } else if (options.nesterov) {
        run(std::integral_constant<Rule, Rule::nesterov>{}, with_ratio);
      } else {
        run(std::integral_constant<Rule, Rule::momentum>{}, with_ratio);
      }
    };
    if (ratios != nullptr) {
      visit(std::true_type{});
    } else {
      visit(std::false_type{});
    }
  });
}

void sgd_update(CpuContext& context, const SgdOptions& options, const ArenaUpdate& update, const TensorView& velocity) {
  momentum_update(context, update, options, velocity, nullptr);
}

}  // namespace lockstep::ops::backend
