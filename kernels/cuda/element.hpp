#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include <lockstep/kernels/cuda/port.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

/// The element types of kernels: float, __nv_bfloat16 or __half in memory, float in registers. Accesses take 16 bytes.
namespace lockstep::gpu {

__device__ inline float to_float(float value) {
  return value;
}
__device__ inline float to_float(__nv_bfloat16 value) {
  return __bfloat162float(value);
}
__device__ inline float to_float(__half value) {
  return __half2float(value);
}

/// Rounds `value` to the nearest number of type T, with ties to even.
template <class T>
__device__ T from_float(float value) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(value);
  } else if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(value);
  } else {
    return value;
  }
}

/// Number of elements in one 16-byte access.
template <class T>
inline constexpr int kPerVector = 16 / static_cast<int>(sizeof(T));

/// kCount elements in registers.
template <class T, int kCount>
struct Pack {
  T at[kCount];
};

template <class T>
using Vector = Pack<T, kPerVector<T>>;

/// Returns the kCount `values` rounded to T.
template <class T, int kCount>
__device__ Pack<T, kCount> rounded(const float (&values)[kCount]) {
  Pack<T, kCount> result;
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    result.at[j] = from_float<T>(values[j]);
  }
  return result;
}

/// Loads kCount elements. If kCount is not 1, the elements must fill whole 16-byte accesses, and `from` must be 16-byte
/// aligned.
template <int kCount, class T>
__device__ Pack<T, kCount> load(const T* from) {
  Pack<T, kCount> value;
  if constexpr (kCount == 1) {
    value.at[0] = *from;
  } else {
    static_assert(sizeof(value) % 16 == 0);
#pragma unroll
    for (std::size_t i = 0; i < sizeof(value) / 16; ++i) {
      const uint4 bits = reinterpret_cast<const uint4*>(from)[i];
      memcpy(reinterpret_cast<unsigned char*>(&value) + 16 * i, &bits, 16);
    }
  }
  return value;
}

/// Stores kCount elements: one element, or as many as whole 16-byte accesses take, to a 16-byte aligned address. nvcc
/// may split a plain store that it can trace back to single elements; __stwb requests the 16-byte store by name.
template <class T, int kCount>
__device__ void store(T* to, const Pack<T, kCount>& value) {
  if constexpr (kCount == 1) {
    *to = value.at[0];
  } else {
    static_assert(sizeof(value) % 16 == 0);
#pragma unroll
    for (std::size_t i = 0; i < sizeof(value) / 16; ++i) {
      uint4 bits;
      memcpy(&bits, reinterpret_cast<const unsigned char*>(&value) + 16 * i, 16);
      __stwb(reinterpret_cast<uint4*>(to) + i, bits);
    }
  }
}

/// Loads 16 bytes. `from` must be 16-byte aligned.
template <class T>
__device__ Vector<T> load_vector(const T* from) {
  return load<kPerVector<T>>(from);
}

/// Stores 16 bytes. `to` must be 16-byte aligned.
template <class T>
__device__ void store_vector(T* to, const Vector<T>& value) {
  store(to, value);
}

/// Returns the address of the elements of `view`. The caller must have chosen T by visit_element().
template <class T>
[[nodiscard]] T* data(const TensorView& view) {
  return static_cast<T*>(view.data);
}

/// Returns true if all `pointers` allow 16-byte accesses. If it returns false, kernels take one element at a time.
template <class... T>
[[nodiscard]] bool aligned_to_vectors(const T*... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
}

/// Calls f(std::type_identity<T>{}), where T is float, __nv_bfloat16 or __half. Throws DTypeError for other types.
template <class F>
decltype(auto) visit_element(DType dtype, std::string_view op, F&& f) {
  require<DTypeError>(dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16, op, ": dtype is ", dtype,
                      ", expected f32, bf16 or f16 on a GPU");
  if (dtype == DType::f32) {
    return f(std::type_identity<float>{});
  }
  return dtype == DType::bf16 ? f(std::type_identity<__nv_bfloat16>{}) : f(std::type_identity<__half>{});
}

/// Calls f(std::integral_constant<int, kCount>{}), for tensors in which a piece must not cross the end of a row. kCount
/// is kPerVector<T> if the tensors are `aligned` and rows of `row` elements are whole 16-byte pieces, otherwise 1.
template <class T, class F>
void visit_pieces(bool aligned, std::int64_t row, F&& f) {
  if (aligned && row % kPerVector<T> == 0) {
    f(std::integral_constant<int, kPerVector<T>>{});
  } else {
    f(std::integral_constant<int, 1>{});
  }
}

}  // namespace lockstep::gpu
