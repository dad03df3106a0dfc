#pragma once

/// Properties of the processor that tests depend on.
namespace lockstep::testing {

/// True if a row of a product has the same bits with oneDNN whatever the number of rows is (ops::MatmulDesc). This
/// holds with AVX-512; without it oneDNN 2.6 sums in another order for other numbers of rows.
inline bool onednn_rows_are_alike() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f") != 0;
#else
  return false;
#endif
}

}  // namespace lockstep::testing
