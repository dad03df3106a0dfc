#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include <lockstep/runtime/context/parallel.hpp>

/// Sums over rows whose values are computed row by row. Rows are divided into fixed chunks. Each chunk is summed in
/// double; then the sums of the chunks are added in order. The bits do not depend on the number of threads.
namespace lockstep::ops {

/// Returns the number of rows per chunk, which depends on the shape only.
[[nodiscard]] inline std::int64_t sum_chunk_rows(std::int64_t rows) {
  constexpr std::int64_t kChunkRows = 64;
  constexpr std::int64_t kMostChunks = 64;
  return std::max(kChunkRows, (rows + kMostChunks - 1) / kMostChunks);
}

/// Returns the bytes of the workspace of column_sums() for `sums` sums per column.
[[nodiscard]] inline std::size_t column_sums_bytes(std::int64_t rows, std::int64_t columns, int sums) {
  const std::int64_t chunks = (rows + sum_chunk_rows(rows) - 1) / sum_chunk_rows(rows);
  return static_cast<std::size_t>(chunks * sums * columns) * sizeof(double);
}

/// Sets sums[k][c] to the sum over the rows, or adds the sum to sums[k][c] if `add` is true. f(row, total) adds the
/// values of a row to the doubles total[k * columns + c]. `partial` has shape (chunks, kSums, columns).
template <class T, std::size_t kSums, class F>
void column_sums(const CpuContext& context, std::int64_t rows, std::int64_t columns, bool add, double* partial,
                 const std::array<T*, kSums>& sums, F f) {
  constexpr std::int64_t kGrain = 16384;  // number of additions that justify another thread
  const std::int64_t width = static_cast<std::int64_t>(kSums) * columns;
  const std::int64_t size = sum_chunk_rows(rows);
  parallel_chunks(context, rows, size, [=](std::int64_t chunk, std::int64_t begin, std::int64_t end) {
    double* const total = partial + chunk * width;
    std::fill_n(total, width, 0.0);
    for (std::int64_t row = begin; row < end; ++row) {
      f(row, total);
    }
  });
  const std::int64_t chunks = (rows + size - 1) / size;
  const std::int64_t grain = std::max(std::int64_t{1}, kGrain / (chunks + 1));
  parallel_ranges(context, width, grain, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      T& to = sums[static_cast<std::size_t>(i / columns)][i % columns];
      double total = add ? static_cast<double>(to) : 0;
      for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
        total += partial[chunk * width + i];
      }
      to = static_cast<T>(total);
    }
  });
}

}  // namespace lockstep::ops
