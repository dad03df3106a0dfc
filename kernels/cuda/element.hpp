#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>

#include <lockstep/kernels/cuda/port.hpp>

/// Elements as kernels see them: float, __nv_bfloat16 or __half in memory, float in registers, 16 bytes an access.
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

/// Rounds to nearest even.
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

/// Elements in one 16-byte access.
template <class T>
inline constexpr int kPerVector = 16 / static_cast<int>(sizeof(T));

/// kPerVector elements in registers.
template <class T>
struct Vector {
  T at[kPerVector<T>];
};

/// One 16-byte load; from is 16-byte aligned.
template <class T>
__device__ Vector<T> load_vector(const T* from) {
  const uint4 bits = *reinterpret_cast<const uint4*>(from);
  Vector<T> value;
  static_assert(sizeof(value) == sizeof(bits));
  memcpy(&value, &bits, sizeof(bits));
  return value;
}

/// One 16-byte store; to is 16-byte aligned.
template <class T>
__device__ void store_vector(T* to, const Vector<T>& value) {
  uint4 bits;
  memcpy(&bits, &value, sizeof(bits));
  *reinterpret_cast<uint4*>(to) = bits;
}

/// True when all pointers allow 16-byte accesses; kernels take one element at a time otherwise.
template <class... T>
[[nodiscard]] bool aligned_to_vectors(const T*... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
}

/// Calls f(std::type_identity<T>{}) with T float, __nv_bfloat16 or __half. DTypeError for the other types.
template <class F>
decltype(auto) visit_element(DType dtype, std::string_view op, F&& f) {
  require<DTypeError>(dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16, op, ": dtype is ", dtype,
                      ", expected f32, bf16 or f16 on a GPU");
  if (dtype == DType::f32) {
    return f(std::type_identity<float>{});
  }
  return dtype == DType::bf16 ? f(std::type_identity<__nv_bfloat16>{}) : f(std::type_identity<__half>{});
}

}  // namespace lockstep::gpu
