// Adam and AdamW on ranges of arenas: parameters, gradients, two moments and optionally a 16-bit copy, (n) each.
//
// arena_kernel (arena.hpp) divides the elements: a block of 256 threads takes chunks of 4096 elements of one segment,
// and a thread accesses 16 bytes at a time. This file has the rule for one element, which takes a few f32 operations.
// One thread of a block computes the bias corrections for the block, with pow() in f64.
//
// Bound by memory bandwidth: 28 bytes per element in f32 (parameter and two moments read and written, gradient read). A
// 16-bit gradient takes 2 bytes less, a 16-bit copy 2 bytes more.

#include <lockstep/kernels/adam.hpp>
#include <lockstep/kernels/cuda/arena.hpp>

namespace lockstep::ops::backend {
namespace {

/// The update rule of Adam, or of AdamW if kDecoupled is true.
template <bool kDecoupled>
struct Adam {
  static constexpr int kStates = 2;  // state arenas: first and second moment
  struct Shared {                    // the bias corrections of this step, computed once per block
    double inverse_correction1;      // 1 / (1 - beta1^t)
    float inverse_root2;             // 1 / sqrt(1 - beta2^t)
  };
  struct Part {
    float step_size;
    float weight_decay;  // 1 - learning rate * weight decay if kDecoupled, otherwise the weight decay
    float beta1, new1;   // new1 = 1 - beta1
    float beta2, new2;
    float inverse_root2;
    float epsilon;
  };
  double beta1;
  double beta2;
  float epsilon;
  const std::int64_t* step;

  __device__ Shared share() const {
    const double t = *step > 1 ? static_cast<double>(*step) : 1.0;
    return {1.0 / (1.0 - pow(beta1, t)), static_cast<float>(1.0 / sqrt(1.0 - pow(beta2, t)))};
  }
  __device__ Part part(const Shared& shared, double learning_rate, const gpu::ArenaPart& part, std::int64_t) const {
    const double decay = kDecoupled ? 1.0 - learning_rate * part.weight_decay : part.weight_decay;
    return {static_cast<float>(learning_rate * shared.inverse_correction1),
            static_cast<float>(decay),
            static_cast<float>(beta1),
            static_cast<float>(1.0 - beta1),
            static_cast<float>(beta2),
            static_cast<float>(1.0 - beta2),
            shared.inverse_root2,
            epsilon};
  }
  static __device__ void update(const Part& k, float& p, float gradient, float* moments) {
    const float g = kDecoupled ? gradient : fmaf(k.weight_decay, p, gradient);
    const float before = kDecoupled ? __fmul_rn(p, k.weight_decay) : p;
    moments[0] = fmaf(k.beta1, moments[0], __fmul_rn(k.new1, g));
    moments[1] = fmaf(k.beta2, moments[1], __fmul_rn(k.new2, __fmul_rn(g, g)));
    p = fmaf(-k.step_size, moments[0] / fmaf(sqrtf(moments[1]), k.inverse_root2, k.epsilon), before);
  }
};

}  // namespace

void adam_update(CudaContext& context, const AdamOptions& options, const ArenaUpdate& update, const TensorView& step,
                 const TensorView& first_moment, const TensorView& second_moment) {
  const auto run = [&]<bool kDecoupled>(std::bool_constant<kDecoupled>) {
    gpu::update_arena(
        context, update,
        Adam<kDecoupled>{options.beta1, options.beta2, static_cast<float>(options.epsilon), step.as<std::int64_t>()},
        {first_moment, second_moment});
  };
  if (options.decoupled) {
    run(std::true_type{});
  } else {
    run(std::false_type{});
  }
}

}  // namespace lockstep::ops::backend
