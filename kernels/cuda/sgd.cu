// Updates ranges of arenas by SGD with momentum, or by LARS: parameters, gradients, velocity and optionally a 16-bit
// copy of the parameters, (n) each. arena_kernel (arena.hpp) divides the elements: a block of 256 threads takes chunks
// of 4096 elements of one segment, so that the segment's coefficients stay in registers; a thread takes 16 bytes per
// access. This file has the rule for one element, a few f32 operations.
// Bound by memory bandwidth: 20 bytes per element in f32 with momentum (parameter and velocity read and written,
// gradient read), 12 without. A 16-bit gradient takes 2 bytes less, a 16-bit copy 2 bytes more.

#include <lockstep/kernels/cuda/arena.hpp>
#include <lockstep/kernels/sgd.hpp>

namespace lockstep::ops::backend {
namespace {

/// The Rule for arena_kernel (arena.hpp) that updates one element by SGD or LARS.
template <bool kMomentum>
struct Momentum {
  static constexpr int kStates = kMomentum ? 1 : 0;  // number of state arenas: one (the velocity) or none
  struct Shared {};
  struct Part {
    float learning_rate;
    float weight_decay;
    float ratio;
    float momentum;
    bool nesterov;
  };
  float momentum;
  bool nesterov;
  const double* ratios;  // trust ratios of LARS, one for each ArenaPart; null if all ratios are 1

  __device__ Shared share() const { return {}; }
  __device__ Part part(const Shared&, double learning_rate, const gpu::ArenaPart& part, std::int64_t number) const {
    const float ratio = ratios != nullptr ? static_cast<float>(ratios[number]) : 1.0F;
    return {static_cast<float>(learning_rate), static_cast<float>(part.weight_decay), ratio, momentum, nesterov};
  }
  static __device__ void update(const Part& k, float& p, float gradient, float* v) {
    const float g = __fmul_rn(k.ratio, fmaf(k.weight_decay, p, gradient));
    float step = g;
    if constexpr (kMomentum) {
      v[0] = fmaf(k.momentum, v[0], g);
      step = k.nesterov ? fmaf(k.momentum, v[0], g) : v[0];
    }
    p = fmaf(-k.learning_rate, step, p);
  }
};

}  // namespace

void momentum_update(CudaContext& context, const ArenaUpdate& update, const MomentumOptions& options,
                     const TensorView& velocity, const double* ratios) {
  if (options.momentum == 0) {
    gpu::update_arena(context, update, Momentum<false>{0, false, ratios}, {});
  } else {
    gpu::update_arena(context, update, Momentum<true>{static_cast<float>(options.momentum), options.nesterov, ratios},
                      {velocity});
  }
}

void sgd_update(CudaContext& context, const SgdOptions& options, const ArenaUpdate& update,
                const TensorView& velocity) {
  momentum_update(context, update, options, velocity, nullptr);
}

}  // namespace lockstep::ops::backend
