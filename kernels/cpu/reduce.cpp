#include <lockstep/kernels/reduce.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>

#include <lockstep/kernels/cpu/chunk_sum.hpp>
#include <lockstep/kernels/cpu/element.hpp>
#include <lockstep/runtime/context/parallel.hpp>

namespace lockstep::ops::backend {
namespace {

constexpr std::int64_t kColumns = 64;     // number of columns that are summed together
constexpr std::int64_t kParts = 64;       // number of partial results on the stack, kColumns doubles each
constexpr std::int64_t kMostSplits = 16;  // largest number of runs of rows that are summed separately
constexpr std::int64_t kRowsPerSplit = 512;

using Part = std::array<double, static_cast<std::size_t>(kColumns)>;

/// Sets part[j] to the sum of x[row, column + j] over the rows [first_row, last_row), in order.
template <class T>
void sum_block(const T* x, std::int64_t row_length, std::int64_t first_row, std::int64_t last_row, std::int64_t column,
               std::int64_t columns, Part& part) {
  part.fill(0);
  for (std::int64_t row = first_row; row < last_row; ++row) {
    const T* values = x + row * row_length + column;
    for (std::int64_t j = 0; j < columns; ++j) {
      part[static_cast<std::size_t>(j)] += static_cast<double>(value_of(values[j]));
    }
  }
}

template <class T>
void sum_rows(const CpuContext& context, const T* x, std::int64_t rows, std::int64_t row_length, GradMode mode,
              Value<T>* sums) {
  // Rows and columns are divided in a way that depends on the shape only, not on the number of threads.
  const std::int64_t splits = std::clamp<std::int64_t>(rows / kRowsPerSplit, 1, kMostSplits);
  const std::int64_t blocks_a_pass = kParts / splits;
  std::array<Part, static_cast<std::size_t>(kParts)> parts;
  for (std::int64_t first = 0; first < row_length; first += blocks_a_pass * kColumns) {
    const std::int64_t blocks = std::min(blocks_a_pass, (row_length - first + kColumns - 1) / kColumns);
    const std::int64_t width = std::min(row_length - first, blocks * kColumns);
    const std::int64_t grain = std::max<std::int64_t>(1, 16384 * splits / (kColumns * std::max<std::int64_t>(1, rows)));
    parallel_ranges(context, blocks * splits, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t split = i % splits;
        const std::int64_t column = first + i / splits * kColumns;
        sum_block(x, row_length, rows * split / splits, rows * (split + 1) / splits, column,
                  std::min(kColumns, row_length - column), parts[static_cast<std::size_t>(i)]);
      }
    });
    for (std::int64_t j = 0; j < width; ++j) {
      double sum = 0;
      for (std::int64_t split = 0; split < splits; ++split) {
        sum += parts[static_cast<std::size_t>(j / kColumns * splits + split)][static_cast<std::size_t>(j % kColumns)];
      }
      const double before = mode == GradMode::accumulate ? static_cast<double>(sums[first + j]) : 0.0;
      sums[first + j] = static_cast<Value<T>>(before + sum);
    }
  }
}

template <class T>
bool holds_non_finite(const T* x, std::int64_t begin, std::int64_t end) {
  bool found = false;
  for (std::int64_t i = begin; i < end; ++i) {
    found |= !(std::abs(value_of(x[i])) <= std::numeric_limits<Value<T>>::max());
  }
  return found;
}

}  // namespace

void reduce_rows(CpuContext& context, const TensorView& x, GradMode mode, const TensorView& sums,
                 const TensorView& /*workspace*/) {
  visit_element(x.dtype, "reduce_rows", [&]<class T>(std::type_identity<T>) {
    sum_rows(context, x.as<T>(), x.shape[0], x.shape[1], mode, sums.as<Value<T>>());
  });
}

void sum(CpuContext& context, const TensorView& x, const TensorView& result, const TensorView& workspace) {
  visit_element(x.dtype, "sum", [&]<class T>(std::type_identity<T>) {
    const T* p = x.as<T>();
    *result.as<double>() = chunk_sum(
        context, x.numel(), kSumChunk, static_cast<double*>(workspace.data), [=](std::int64_t begin, std::int64_t end) {
          return lane_sum(begin, end, [=](std::int64_t i) { return static_cast<double>(value_of(p[i])); });
        });
  });
}

void squared_norm(CpuContext& context, const TensorView& x, const TensorView& result, const TensorView& workspace) {
  visit_element(x.dtype, "squared_norm", [&]<class T>(std::type_identity<T>) {
    const T* p = x.as<T>();
    *result.as<double>() = chunk_sum(context, x.numel(), kSumChunk, static_cast<double*>(workspace.data),
                                     [=](std::int64_t begin, std::int64_t end) {
                                       return lane_sum(begin, end, [=](std::int64_t i) {
                                         const auto value = static_cast<double>(value_of(p[i]));
                                         return value * value;
                                       });
                                     });
  });
}

void all_finite(CpuContext& context, const TensorView& x, const TensorView& found) {
  std::atomic_ref<std::int32_t> flag(*found.as<std::int32_t>());
  visit_element(x.dtype, "all_finite", [&]<class T>(std::type_identity<T>) {
    const T* p = x.as<T>();
    parallel_ranges(context, x.numel(), kSumChunk, [=](std::int64_t begin, std::int64_t end) {
      if (holds_non_finite(p, begin, end)) {
        flag.store(1, std::memory_order_relaxed);
      }
    });
  });
}

}  // namespace lockstep::ops::backend
