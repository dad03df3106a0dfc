// The parts of Muon that are not matrix products: the direction of arenas (n), factors (n), and the polynomial z = a I
// + b x + c y for (batch, k, k).
//
// Direction: arena.hpp divides the elements, and this file has the rule for one element. Factors: a thread takes one
// factor. Polynomial: blocks of 256 threads in a grid-stride loop; a thread takes 16 bytes (a piece) of x, y and z. Two
// divisions per piece find the position of the piece in its matrix; then a counter finds the elements on the diagonal.
//
// Memory bandwidth bounds direction and polynomial. The direction moves 28 bytes per element in f32 (parameter,
// velocity and direction read and written, gradient read). The polynomial moves 12 bytes in f32 and 6 in 16 bits. The
// factors move 12 bytes per matrix; the latency of the launch bounds them.

#include <lockstep/kernels/cuda/arena.hpp>
#include <lockstep/kernels/muon.hpp>

namespace lockstep::ops::backend {
namespace {

/// The rule that arena_kernel applies to compute the direction. The rule does not change the parameter, which
/// arena_kernel reads and writes all the same.
struct Direction {
  static constexpr int kStates = 2;  // the state arenas are velocity and direction, in this order
  struct Shared {};
  struct Part {
    float momentum;
    float rest;
    bool nesterov;
  };
  float momentum;
  float rest;  ///< 1 minus momentum
  bool nesterov;

  __device__ Shared share() const { return {}; }
  __device__ Part part(const Shared&, double, const gpu::ArenaPart&, std::int64_t) const {
    return {momentum, rest, nesterov};
  }
  static __device__ void update(const Part& k, float&, float g, float* states) {
    const float v = fmaf(k.rest, g - states[0], states[0]);
    states[0] = v;
    states[1] = k.nesterov ? fmaf(k.momentum, v - g, g) : v;
  }
};

constexpr int kBlock = 256;

/// Computes factors (n) from `squares` (n), sums of squares. A thread computes one factor.
template <class T>
__global__ void factor_kernel(double epsilon, std::int64_t n, const double* squares, T* factors) {
  gpu::wait_for_earlier();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) {
    factors[i] = static_cast<T>(1.0 / fmax(sqrt(squares[i]), epsilon));
  }
}

/// The position of an element in a batch of matrices (k, k). For each piece of 16 bytes a thread computes the Place of
/// the first element by two divisions. Then advance() moves the Place from element to element.
struct Place {
  std::int64_t k;
  std::int64_t in_matrix;  ///< index of the element among the k * k elements of its matrix
  std::int64_t behind;     ///< number of elements since the last diagonal element: 0 on the diagonal, at most k

  __device__ void advance() {
    ++in_matrix;
    behind = behind == k || in_matrix == k * k ? 0 : behind + 1;
    in_matrix = in_matrix == k * k ? 0 : in_matrix;
  }
};

__device__ inline Place place_of(std::int64_t k, std::int64_t element) {
  const std::int64_t in_matrix = element % (k * k);
  return {k, in_matrix, in_matrix % (k + 1)};
}

/// Computes z = a I + b x + c y. x, y and z are `count` elements of matrices (k, k), one after another. The threads
/// together take `vectors` pieces of 16 bytes, and then the remaining elements one by one. A thread reads a piece of x
/// and y before it writes the piece of z, so z may be x or y.
template <class T>
__global__ void polynomial_kernel(float a, float b, float c, std::int64_t k, std::int64_t count, std::int64_t vectors,
                                  const T* x, const T* y, T* z) {
  gpu::wait_for_earlier();
  constexpr int kElements = gpu::kPerVector<T>;
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  const auto value = [=](const Place& place, T from_x, T from_y) {
    const float sum = fmaf(b, gpu::to_float(from_x), c * gpu::to_float(from_y));
    return gpu::from_float<T>(place.behind == 0 ? a + sum : sum);
  };
  for (std::int64_t v = thread; v < vectors; v += threads) {
    const gpu::Vector<T> from_x = gpu::load_vector(x + v * kElements);
    const gpu::Vector<T> from_y = gpu::load_vector(y + v * kElements);
    gpu::Vector<T> result;
    Place place = place_of(k, v * kElements);
#pragma unroll
    for (int j = 0; j < kElements; ++j) {
      result.at[j] = value(place, from_x.at[j], from_y.at[j]);
      place.advance();
    }
    gpu::store_vector(z + v * kElements, result);
  }
  for (std::int64_t e = vectors * kElements + thread; e < count; e += threads) {
    z[e] = value(place_of(k, e), x[e], y[e]);
  }
}

}  // namespace

void muon_direction(CudaContext& context, const MuonOptions& options, const ArenaUpdate& update,
                    const TensorView& velocity, const TensorView& direction) {
  gpu::update_arena(
      context, update,
      Direction{static_cast<float>(options.momentum), static_cast<float>(1 - options.momentum), options.nesterov},
      {velocity, direction});
}

void muon_factor(CudaContext& context, double epsilon, const TensorView& squares, const TensorView& factors) {
  const std::int64_t n = squares.numel();
  if (n == 0) {
    return;
  }
  gpu::launch(factor_kernel<float>, dim3(gpu::blocks_for(n, kBlock)), dim3(kBlock), 0, context.stream(), epsilon, n,
              gpu::data<const double>(squares), gpu::data<float>(factors));
}

void muon_polynomial(CudaContext& context, const MuonPolynomial& polynomial, const TensorView& x, const TensorView& y,
                     const TensorView& z) {
  gpu::visit_element(x.dtype, "muon_polynomial", [&]<class T>(std::type_identity<T>) {
    const std::int64_t count = x.numel();
    if (count == 0) {
      return;
    }
    const T* from_x = gpu::data<const T>(x);
    const T* from_y = gpu::data<const T>(y);
    T* to = gpu::data<T>(z);
    const std::int64_t vectors = gpu::aligned_to_vectors(from_x, from_y, to) ? count / gpu::kPerVector<T> : 0;
    const std::int64_t rest = count - vectors * gpu::kPerVector<T>;
    gpu::launch(polynomial_kernel<T>, dim3(gpu::blocks_for(vectors > rest ? vectors : rest, kBlock)), dim3(kBlock), 0,
                context.stream(), static_cast<float>(polynomial.a), static_cast<float>(polynomial.b),
                static_cast<float>(polynomial.c), x.shape[2], count, vectors, from_x, from_y, to);
  });
}

}  // namespace lockstep::ops::backend
