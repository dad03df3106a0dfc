#include <algorithm>
#include <cstdint>

#include <lockstep/kernels/cpu/activation.hpp>
#include <lockstep/kernels/cpu/element.hpp>
#include <lockstep/kernels/cpu/lanes.hpp>
#include <lockstep/kernels/detail/providers.hpp>
#include <lockstep/runtime/base/align.hpp>
#include <lockstep/runtime/context/parallel.hpp>

// Matrix products in registers. A block of c is computed in pieces of k. At a time, registers hold the sums of a few
// rows of the block, one or two registers per row. A sum begins at 0 and adds its products one by one in the order of
// k, by lanes::multiply_add(). Then the bias or c is added. So the bits of a sum do not depend on m, n, or the number
// of threads. Tests compare the other providers with this one.

namespace lockstep::ops::reference {
namespace {

using lanes::Lanes;
using std::int64_t;

constexpr std::string_view kName = "reference";
constexpr int64_t kRows = 32;      // number of rows of c in a block, which one thread computes at a time
constexpr int64_t kColumns = 64;   // number of columns of c in a block
constexpr int64_t kDepth = 64;     // number of terms along k that a block sums at a time
constexpr int64_t kWork = 131072;  // number of multiply-adds that justify another thread

/// The operands of one product. Element (i, l) of op(a) is a[i * a_row + l * a_column]; element (l, j) of op(b) is b[l
/// * b_row + j * b_column].
template <class T>
struct Operands {
  const T* a;
  const T* b;
  int64_t a_row, a_column;
  int64_t b_row, b_column;
};

/// Packs a block (depth, columns) of op(b) into `to` (depth, width). If `columns` is below `width`, the last column is
/// repeated.
template <class T>
void pack(const T* b, int64_t b_row, int64_t b_column, int64_t depth, int64_t columns, int64_t width, Value<T>* to) {
  constexpr int64_t kCount = lanes::kCount<Value<T>>;
  for (int64_t j = 0; j < width; j += kCount) {
    int64_t l = 0;
    if constexpr (std::is_same_v<T, Value<T>>) {
      for (; b_row == 1 && l + kCount <= depth; l += kCount) {  // transposes a transposed b square by square
        Lanes<T> square[kCount];
#pragma GCC unroll 16
        for (int64_t i = 0; i < kCount; ++i) {
          square[i] = lanes::load(b + std::min(j + i, columns - 1) * b_column + l);
        }
        lanes::transpose<T>(square);
#pragma GCC unroll 16
        for (int64_t i = 0; i < kCount; ++i) {
          lanes::store<T>(square[i], to + (l + i) * width + j);
        }
      }
    }
    for (; l < depth; ++l) {
      for (int64_t i = j; i < j + kCount; ++i) {
        to[l * width + i] = value_of(b[l * b_row + std::min(i, columns - 1) * b_column]);
      }
    }
  }
}

/// Adds the matrix product of a and b to sums, for kHeight rows and kWide registers of columns. a is laid out as in
/// Operands. Consecutive rows of b are b_row values apart, consecutive rows of sums `stride` values.
template <int kHeight, int kWide, class T>
[[gnu::noinline]] void multiply_add(const T* a, int64_t a_row, int64_t a_column, const Value<T>* b, int64_t b_row,
                                    int64_t depth, Value<T>* sums, int64_t stride) {
  using V = Value<T>;
  constexpr int64_t kCount = lanes::kCount<V>;
  Lanes<V> sum[kHeight][kWide];
#pragma GCC unroll 8
  for (int i = 0; i < kHeight; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kWide; ++j) {
      sum[i][j] = lanes::load(sums + i * stride + j * kCount);
    }
  }
  for (int64_t l = 0; l < depth; ++l) {
    Lanes<V> row[kWide];
#pragma GCC unroll 8
    for (int j = 0; j < kWide; ++j) {
      row[j] = lanes::load(b + l * b_row + j * kCount);
    }
#pragma GCC unroll 8
    for (int i = 0; i < kHeight; ++i) {
      const Lanes<V> value = lanes::all(value_of(a[i * a_row + l * a_column]));
#pragma GCC unroll 8
      for (int j = 0; j < kWide; ++j) {
        sum[i][j] = lanes::multiply_add(value, row[j], sum[i][j]);
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kHeight; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kWide; ++j) {
      lanes::store<V>(sum[i][j], sums + i * stride + j * kCount);
    }
  }
}

/// Calls multiply_add() for any number of rows.
template <int kWide, class T>
void multiply_add_rows(const T* a, int64_t a_row, int64_t a_column, const Value<T>* b, int64_t b_row, int64_t depth,
                       int64_t rows, Value<T>* sums, int64_t stride) {
  constexpr int kHeight = 8 / kWide;  // 8 sums at a time keep the processor busy
  int64_t i = 0;
  for (; i + kHeight <= rows; i += kHeight) {
    multiply_add<kHeight, kWide>(a + i * a_row, a_row, a_column, b, b_row, depth, sums + i * stride, stride);
  }
  for (; i + 2 <= rows; i += 2) {
    multiply_add<2, kWide>(a + i * a_row, a_row, a_column, b, b_row, depth, sums + i * stride, stride);
  }
  if (i < rows) {
    multiply_add<1, kWide>(a + i * a_row, a_row, a_column, b, b_row, depth, sums + i * stride, stride);
  }
}

/// Sets sums to a block of op(a) op(b) that begins at row i and column j and is at most kRows x kColumns. sums has
/// shape (rows, stride); stride is `columns` rounded up to whole registers.
template <class T>
void multiply_block(const Operands<T>& from, int64_t i, int64_t j, int64_t rows, int64_t columns, int64_t depth,
                    Value<T>* sums, int64_t stride) {
  using V = Value<T>;
  constexpr int64_t kCount = lanes::kCount<V>;
  V packed[kDepth * 2 * kCount];  // shape (depth, width)
  std::fill_n(sums, rows * stride, V{0});
  for (int64_t first = 0; first < depth; first += kDepth) {
    const int64_t piece = std::min(kDepth, depth - first);
    const T* a = from.a + i * from.a_row + first * from.a_column;
    for (int64_t column = 0; column < columns;) {
      const int64_t width = columns - column > kCount ? 2 * kCount : kCount;
      const T* b = from.b + first * from.b_row + (j + column) * from.b_column;
      const V* row = packed;
      int64_t b_row = width;
      bool in_place = false;
      if constexpr (std::is_same_v<T, V>) {
        in_place = from.b_column == 1 && columns - column >= width;
        if (in_place) {
          row = b;
          b_row = from.b_row;
        }
      }
      if (!in_place) {
        pack(b, from.b_row, from.b_column, piece, std::min(width, columns - column), width, packed);
      }
      V* to = sums + column;
      if (width > kCount) {
        multiply_add_rows<2>(a, from.a_row, from.a_column, row, b_row, piece, rows, to, stride);
      } else {
        multiply_add_rows<1>(a, from.a_row, from.a_column, row, b_row, piece, rows, to, stride);
      }
      column += width;
    }
  }
}

/// Computes c. a, b and c have the shapes of the desc; bias has n numbers, or is null.
template <class T, class Out>
void multiply(const CpuContext& context, const MatmulDesc& d, const T* a, const T* b, const Value<T>* bias, Out* c) {
  using V = Value<T>;
  const int64_t row_blocks = (d.m + kRows - 1) / kRows;
  const int64_t column_blocks = (d.n + kColumns - 1) / kColumns;
  const int64_t work = d.k * std::min(kColumns, d.n) * std::min(kRows, d.m);
  parallel_ranges(
      context, d.products() * row_blocks * column_blocks, 1 + kWork / work, [&](int64_t begin, int64_t end) {
        V sums[kRows * kColumns];  // shape (rows, stride)
        for (int64_t item = begin; item < end; ++item) {
          const int64_t product = item / column_blocks / row_blocks;
          const int64_t i = item / column_blocks % row_blocks * kRows;
          const int64_t j = item % column_blocks * kColumns;
          const int64_t rows = std::min(kRows, d.m - i);
          const int64_t columns = std::min(kColumns, d.n - j);
          const int64_t stride = align_up(columns, lanes::kCount<V>);
          const Operands<T> from{.a = a + product * d.m * d.k,
                                 .b = b + product * d.k * d.n,
                                 .a_row = d.transpose_a ? 1 : d.k,
                                 .a_column = d.transpose_a ? d.m : 1,
                                 .b_row = d.transpose_b ? 1 : d.n,
                                 .b_column = d.transpose_b ? d.k : 1};
          multiply_block(from, i, j, rows, columns, d.k, sums, stride);
          Out* out = c + (product * d.m + i) * d.n + j;
          for (int64_t row = 0; row < rows; ++row) {
            V* sum = sums + row * stride;
            for (int64_t column = 0; column < columns; ++column) {
              const V before = d.grad_mode == GradMode::accumulate ? value_of(out[row * d.n + column])
                                                                   : (bias != nullptr ? bias[j + column] : V{0});
              sum[column] = before + sum[column];
            }
          }
          if (d.activation != Activation::identity) {
            activations::values(d.activation, sums, rows * stride, sums);
          }
          for (int64_t row = 0; row < rows; ++row) {
            const V* sum = sums + row * stride;
            for (int64_t column = 0; column < columns; ++column) {
              out[row * d.n + column] = Out(sum[column]);
            }
          }
        }
      });
}

class Plan final : public MatmulPlan {
 public:
  explicit Plan(const MatmulDesc& desc) : MatmulPlan(Device::cpu(), desc) {}

  std::size_t workspace_bytes() const override { return 0; }
  bool deterministic() const override { return true; }
  std::string choice() const override { return std::string(kName); }

  void run(Context& context, const TensorView& a, const TensorView& b, const TensorView& bias, const TensorView& c,
           const TensorView& /*workspace*/) const override {
    const auto& cpu = static_cast<const CpuContext&>(context);
    visit_element(desc().dtype, "matmul", [&]<class T>(std::type_identity<T>) {
      const Value<T>* row = desc().bias ? bias.as<Value<T>>() : nullptr;
      visit_element(desc().c_dtype(), "matmul", [&]<class Out>(std::type_identity<Out>) {
        if constexpr (std::is_same_v<Out, T> || std::is_same_v<Out, Value<T>>) {  // other pairs of types do not occur
          multiply(cpu, desc(), a.as<T>(), b.as<T>(), row, c.as<Out>());
        }
      });
    });
  }
};

bool supports(const MatmulDesc& desc) {
  return desc.dtype == DType::f32 || desc.dtype == DType::f64 || desc.dtype == DType::bf16;
}

std::vector<std::string> choices(Context& /*context*/, const MatmulDesc& desc) {
  return supports(desc) ? std::vector<std::string>{std::string(kName)} : std::vector<std::string>{};
}

std::unique_ptr<MatmulPlan> plan(Context& /*context*/, const MatmulDesc& desc, const std::string& choice) {
  require<UsageError>(choice == kName, "matmul: choice is '", choice, "', expected '", kName, "'");
  require<UnsupportedError>(supports(desc), "matmul: dtype is ", desc.dtype,
                            ", expected f32, f64 or bf16 with 'reference'");
  return std::make_unique<Plan>(desc);
}

}  // namespace

MatmulProvider matmul_provider() {
  return {kName, DeviceKind::cpu, choices, plan};
}

}  // namespace lockstep::ops::reference
