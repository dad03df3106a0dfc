#include <lockstep/kernels/muon.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include <lockstep/kernels/cpu/arena.hpp>
#include <lockstep/kernels/cpu/element.hpp>
#include <lockstep/runtime/context/parallel.hpp>

namespace lockstep::ops::backend {
namespace {

constexpr std::int64_t kGrain = 16384;  // number of elements that justify another thread

}  // namespace

void muon_direction(CpuContext& context, const MuonOptions& options, const ArenaUpdate& update,
                    const TensorView& velocity, const TensorView& direction) {
  visit_compute(update.parameters.dtype, "muon_direction", [&]<class T>(std::type_identity<T>) {
    T* v = velocity.as<T>();
    T* d = direction.as<T>();
    const auto momentum = static_cast<T>(options.momentum);
    const auto share = static_cast<T>(1 - options.momentum);
    const bool nesterov = options.nesterov;
    update_arena<T>(context, update,
                    [=](const ArenaSegment&, double, std::int64_t first, std::int64_t count, T*, const T* gradients) {
                      for (std::int64_t i = 0; i < count; ++i) {
                        T& own = v[first + i];
                        own += share * (gradients[i] - own);
                        d[first + i] = nesterov ? gradients[i] + momentum * (own - gradients[i]) : own;
                      }
                    });
  });
}

void muon_factor(CpuContext& /*context*/, double epsilon, const TensorView& squares, const TensorView& factors) {
  visit_compute(factors.dtype, "muon_factor", [&]<class T>(std::type_identity<T>) {
    for (std::int64_t i = 0; i < squares.numel(); ++i) {
      factors.as<T>()[i] = static_cast<T>(1 / std::max(std::sqrt(squares.as<double>()[i]), epsilon));
    }
  });
}

void muon_polynomial(CpuContext& context, const MuonPolynomial& polynomial, const TensorView& x, const TensorView& y,
                     const TensorView& z) {
  visit_element(x.dtype, "muon_polynomial", [&]<class T>(std::type_identity<T>) {
    const auto a = static_cast<Value<T>>(polynomial.a);
    const auto b = static_cast<Value<T>>(polynomial.b);
    const auto c = static_cast<Value<T>>(polynomial.c);
    const std::int64_t k = x.shape[2];
    const std::int64_t rows = x.shape[0] * k;
    const T* px = x.as<T>();
    const T* py = y.as<T>();
    T* pz = z.as<T>();
    parallel_ranges(context, rows, kGrain / std::max<std::int64_t>(1, k) + 1,
                    [=](std::int64_t begin, std::int64_t end) {
                      for (std::int64_t row = begin; row < end; ++row) {
                        for (std::int64_t column = 0; column < k; ++column) {
                          const std::int64_t i = row * k + column;
                          const Value<T> sum = b * value_of(px[i]) + c * value_of(py[i]);
                          store(column == row % k ? a + sum : sum, pz[i]);
                        }
                      }
                    });
  });
}

}  // namespace lockstep::ops::backend
