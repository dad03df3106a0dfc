#include <lockstep/kernels/activation.hpp>
#include <lockstep/kernels/cuda/elementwise.hpp>

namespace lockstep::ops::backend {
namespace {

// Memory-bound: forward moves two tensors, backward three; the exponentials run in their shadow.

constexpr float kSqrtHalf = 0.70710678F;       // sqrt(1 / 2)
constexpr float kInvSqrtTwoPi = 0.39894228F;   // 1 / sqrt(2 pi)
constexpr float kSqrtTwoOverPi = 0.79788456F;  // sqrt(2 / pi)
constexpr float kCubic = 0.044715F;

/// sigma(x) and sigma(-x), from one exponential that cannot overflow.
struct Sigmas {
  float at_x, at_minus_x;
};

__device__ Sigmas sigmas(float x) {
  const float e = expf(-fabsf(x));
  const float large = 1.0F / (1.0F + e);
  const float small = e * large;
  return x >= 0.0F ? Sigmas{large, small} : Sigmas{small, large};
}

__device__ float normal_distribution(float x) {
  return 0.5F * erfcf(-x * kSqrtHalf);
}

template <Activation kKind>
struct Forward {
  __device__ float operator()(float x) const {
    if constexpr (kKind == Activation::gelu) {
      return x * normal_distribution(x);
    } else if constexpr (kKind == Activation::gelu_tanh) {
      return 0.5F * x * (1.0F + tanhf(kSqrtTwoOverPi * fmaf(kCubic * x * x, x, x)));
    } else if constexpr (kKind == Activation::silu) {
      return x * sigmas(x).at_x;
    } else if constexpr (kKind == Activation::tanh) {
      return tanhf(x);
    } else {
      return sigmas(x).at_x;
    }
  }
};

template <Activation kKind>
struct Backward {
  __device__ float operator()(float x, float dy) const { return dy * slope(x); }

  __device__ static float slope(float x) {
    if constexpr (kKind == Activation::gelu) {
      return normal_distribution(x) + x * (kInvSqrtTwoPi * expf(-0.5F * x * x));
    } else if constexpr (kKind == Activation::gelu_tanh) {
      const float square = x * x;
      const float t = tanhf(kSqrtTwoOverPi * fmaf(kCubic * square, x, x));
      const float sech2 = (1.0F - t) * (1.0F + t);
      const float inner_slope = kSqrtTwoOverPi * fmaf(3.0F * kCubic, square, 1.0F);
      return 0.5F * (1.0F + t) + (sech2 == 0.0F ? 0.0F : 0.5F * x * sech2 * inner_slope);  // inner_slope overflows
    } else if constexpr (kKind == Activation::silu) {
      const Sigmas s = sigmas(x);
      return s.at_x * fmaf(x, s.at_minus_x, 1.0F);
    } else if constexpr (kKind == Activation::tanh) {
      const float y = tanhf(x);
      return (1.0F - y) * (1.0F + y);
    } else {
      const Sigmas s = sigmas(x);
      return s.at_x * s.at_minus_x;
    }
  }
};

template <class F>
void visit(Activation kind, F&& f) {
  switch (kind) {
    case Activation::gelu:
      return f(std::integral_constant<Activation, Activation::gelu>{});
    case Activation::gelu_tanh:
      return f(std::integral_constant<Activation, Activation::gelu_tanh>{});
    case Activation::silu:
      return f(std::integral_constant<Activation, Activation::silu>{});
    case Activation::tanh:
      return f(std::integral_constant<Activation, Activation::tanh>{});
    case Activation::sigmoid:
      return f(std::integral_constant<Activation, Activation::sigmoid>{});
  }
}

}  // namespace

void activation_forward(CudaContext& context, Activation kind, const TensorView& x, const TensorView& y) {
  gpu::visit_element(x.dtype, "activation_forward", [&]<class T>(std::type_identity<T>) {
    visit(kind, [&]<Activation kKind>(std::integral_constant<Activation, kKind>) {
      gpu::elementwise(context, Forward<kKind>{}, x.numel(), gpu::data<T>(y), gpu::data<const T>(x));
    });
  });
}

void activation_backward(CudaContext& context, Activation kind, const TensorView& x, const TensorView& dy,
                         const TensorView& dx) {
  gpu::visit_element(x.dtype, "activation_backward", [&]<class T>(std::type_identity<T>) {
    visit(kind, [&]<Activation kKind>(std::integral_constant<Activation, kKind>) {
      gpu::elementwise(context, Backward<kKind>{}, x.numel(), gpu::data<T>(dx), gpu::data<const T>(x),
                       gpu::data<const T>(dy));
    });
  });
}

}  // namespace lockstep::ops::backend
