#pragma once

/// What tests ask of the processor.
namespace lockstep::testing {

/// Whether a row of a product has the same bits with oneDNN whatever the number of rows is (ops::MatmulDesc). With
/// AVX-512 it has; without, oneDNN 2.6 sums in another order for other numbers of rows.
inline bool onednn_rows_are_alike() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f") != 0;
#else
  return false;
#endif
}

}  // namespace lockstep::testing
