#include <lockstep/kernels/mlp.hpp>

#include <algorithm>
#include <array>

#include <lockstep/kernels/cpu/activation.hpp>
#include <lockstep/kernels/cpu/element.hpp>
#include <lockstep/kernels/cpu/lanes.hpp>
#include <lockstep/runtime/base/align.hpp>
#include <lockstep/runtime/context/parallel.hpp>

// A block of samples passes all layers before the next block begins. A block is computed in one of two ways, which give
// the same bits, because each sum is one chain of multiply-adds in the order of the inputs:
//
//   rows     a sample after the other; the lanes of a register are outputs; for few samples
//   columns  the lanes of a register are samples; one or two registers of samples
//
// Packed parameters of a layer: the bias (row), then a row of weights for each input (inputs, row). `row` is the number
// of outputs, rounded up to whole registers; the last output is repeated. A layer with few outputs has no such room.

namespace lockstep::ops::backend {
namespace {

using lanes::Lanes;

constexpr int64_t kFewOutputs = 4;                  // most outputs of a layer whose row is not rounded up
constexpr int64_t kWork = 131072;                   // number of multiply-adds that justify another thread
constexpr int64_t kActivationWork = 25;             // multiply-adds that take as long as an activation
constexpr int kRowsAtATime = 4;                     // number of samples whose sums share the loads of the weights
constexpr int kTall = lanes::kBytes == 64 ? 8 : 4;  // number of outputs whose sums fit the registers, two for each

template <class T>
constexpr int64_t kLanes = lanes::kCount<T>;
template <class T>
constexpr int64_t kBlock = 2 * lanes::kCount<T>;  // most samples of a block

int64_t row_of(int64_t outputs, int64_t lanes) {
  return outputs <= kFewOutputs ? outputs : align_up(outputs, lanes);
}

/// A layer with its packed parameters.
template <class T>
struct Layer {
  const T* bias;
  const T* weight;
  int64_t inputs, outputs, row;
  Activation activation;
};

/// Returns the layer whose packed parameters begin at `at`, and moves `at` to the next layer.
template <class T>
Layer<T> next_layer(const MlpLayer& layer, const T*& at) {
  const int64_t row = row_of(layer.outputs, kLanes<T>);
  const Layer<T> here{at, at + row, layer.inputs, layer.outputs, row, layer.activation};
  at += align_up((layer.inputs + 1) * row, kLanes<T>);
  return here;
}

/// Sets y (kRows, row) to the sums of kRegisters registers of outputs for kRows samples. Rows of x are `stride` numbers
/// apart.
template <int kRows, int kRegisters, class T>
[[gnu::always_inline]] inline void rows_tile(const Layer<T>& l, int64_t first, const T* x, int64_t stride, T* y) {
  Lanes<T> sum[kRows][kRegisters] = {};
  const T* w = l.weight + first;
  for (int64_t i = 0; i < l.inputs; ++i, w += l.row) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Lanes<T> value = lanes::all(x[r * stride + i]);
#pragma GCC unroll 8
      for (int c = 0; c < kRegisters; ++c) {
        sum[r][c] = lanes::multiply_add(value, lanes::load(w + c * kLanes<T>), sum[r][c]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < kRegisters; ++c) {
      const int64_t at = first + c * kLanes<T>;
      lanes::store<T>(lanes::load(l.bias + at) + sum[r][c], y + r * l.row + at);
    }
  }
}

/// Does rows_tile() for a layer of few outputs: every lane of a register holds the same sum.
template <int kRows, class T>
[[gnu::always_inline]] inline void narrow_tile(const Layer<T>& l, const T* x, int64_t stride, T* y) {
  for (int64_t o = 0; o < l.outputs; ++o) {
    Lanes<T> sum[kRows] = {};
    const T* w = l.weight + o;
    for (int64_t i = 0; i < l.inputs; ++i, w += l.row) {
      const Lanes<T> weight = lanes::all(*w);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        sum[r] = lanes::multiply_add(lanes::all(x[r * stride + i]), weight, sum[r]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      y[r * l.row + o] = l.bias[o] + sum[r][0];
    }
  }
}

template <int kRows, class T>
[[gnu::noinline]] void multiply_rows(const Layer<T>& l, const T* x, int64_t stride, T* y) {
  constexpr int kWide = kRows == 1 ? 4 : 2;
  if (l.outputs <= kFewOutputs) {
    return narrow_tile<kRows>(l, x, stride, y);
  }
  int64_t o = 0;
  for (; o + kWide * kLanes<T> <= l.row; o += kWide * kLanes<T>) {
    rows_tile<kRows, kWide>(l, o, x, stride, y);
  }
  for (; o < l.row; o += kLanes<T>) {
    rows_tile<kRows, 1>(l, o, x, stride, y);
  }
}

/// Computes a layer for the samples x (count, stride): y (count, row).
template <class T>
void layer_by_rows(const Layer<T>& l, const T* x, int64_t stride, int64_t count, T* y) {
  int64_t s = 0;
  for (; s + kRowsAtATime <= count; s += kRowsAtATime) {
    multiply_rows<kRowsAtATime>(l, x + s * stride, stride, y + s * l.row);
  }
  for (; s < count; ++s) {
    multiply_rows<1>(l, x + s * stride, stride, y + s * l.row);
  }
  if (l.activation != Activation::identity) {
    activations::values(l.activation, y, count * l.row, y);
  }
}

/// Sets rows [first, first + kOutputs) of y (outputs, samples) to their sums, for kRegisters registers of samples.
template <int kOutputs, int kRegisters, class T>
[[gnu::always_inline]] inline void columns_tile(const Layer<T>& l, int64_t first, const T* x, T* y) {
  constexpr int64_t kSamples = kRegisters * kLanes<T>;
  Lanes<T> sum[kOutputs][kRegisters] = {};
  const T* w = l.weight + first;
  for (int64_t i = 0; i < l.inputs; ++i, w += l.row, x += kSamples) {
    Lanes<T> value[kRegisters];
#pragma GCC unroll 8
    for (int c = 0; c < kRegisters; ++c) {
      value[c] = lanes::load(x + c * kLanes<T>);
    }
#pragma GCC unroll 8
    for (int o = 0; o < kOutputs; ++o) {
      const Lanes<T> weight = lanes::all(w[o]);
#pragma GCC unroll 8
      for (int c = 0; c < kRegisters; ++c) {
        sum[o][c] = lanes::multiply_add(value[c], weight, sum[o][c]);
      }
    }
  }
#pragma GCC unroll 8
  for (int o = 0; o < kOutputs; ++o) {
#pragma GCC unroll 8
    for (int c = 0; c < kRegisters; ++c) {
      lanes::store<T>(lanes::all(l.bias[first + o]) + sum[o][c], y + (first + o) * kSamples + c * kLanes<T>);
    }
  }
}

/// Computes a layer for the samples x (inputs, samples): y (outputs, samples), with kRegisters registers of samples.
template <int kRegisters, class T>
[[gnu::noinline]] void layer_by_columns(const Layer<T>& l, const T* x, T* y) {
  int64_t o = 0;
  for (; o + kTall <= l.outputs; o += kTall) {
    columns_tile<kTall, kRegisters>(l, o, x, y);
  }
  for (; o + 2 <= l.outputs; o += 2) {
    columns_tile<2, kRegisters>(l, o, x, y);
  }
  if (o < l.outputs) {
    columns_tile<1, kRegisters>(l, o, x, y);
  }
  if (l.activation != Activation::identity) {
    activations::values(l.activation, y, l.outputs * kRegisters * kLanes<T>, y);
  }
}

/// The samples of a view (.., features) in row-major order. Axes that lie one in the other are joined.
class Samples {
 public:
  explicit Samples(const TensorView& view) {
    for (int axis = view.shape.rank() - 1; axis-- > 0;) {
      const int64_t extent = view.shape[axis];
      const int64_t stride = view.strides[axis];
      if (axes_ > 0 && (extent == 1 || stride == axes(axes_ - 1).stride * axes(axes_ - 1).extent)) {
        axes(axes_ - 1).extent *= extent;
      } else if (extent != 1) {
        axes(axes_++) = {extent, stride, 0};
      }
    }
  }
  void seek(int64_t sample) {
    offset_ = 0;
    for (int a = 0; a < axes_; ++a) {
      Axis& here = axes(a);
      here.at = a + 1 < axes_ ? sample % here.extent : sample;
      sample = a + 1 < axes_ ? sample / here.extent : 0;
      offset_ += here.at * here.stride;
    }
  }
  /// Sets offsets to those of the next `count` samples.
  void next(int64_t count, int64_t* offsets) {
    if (axes_ <= 1) {
      const int64_t stride = axes(0).stride;
      for (int64_t s = 0; s < count; ++s) {
        offsets[s] = offset_ + s * stride;
      }
      offset_ += count * stride;
      return;
    }
    for (int64_t s = 0; s < count; ++s) {
      offsets[s] = offset_;
      for (int a = 0; a < axes_; ++a) {
        Axis& here = axes(a);
        offset_ += here.stride;
        if (++here.at < here.extent || a + 1 == axes_) {
          break;
        }
        offset_ -= here.at * here.stride;
        here.at = 0;
      }
    }
  }

 private:
  struct Axis {
    int64_t extent, stride, at;
  };
  Axis& axes(int a) { return axes_of_[static_cast<std::size_t>(a)]; }
  std::array<Axis, Shape::kMaxRank> axes_of_{};  ///< innermost first
  int axes_ = 0;
  int64_t offset_ = 0;
};

/// Calls f(pointer) with the view's memory as float* or double*.
template <class F>
void with_memory(const TensorView& view, F&& f) {
  view.dtype == DType::f32 ? f(static_cast<float*>(view.data)) : f(static_cast<double*>(view.data));
}

/// One call: an mlp, its packed parameters, the samples and memory for the numbers between two layers.
template <class T>
class Pass {
 public:
  Pass(const Mlp& mlp, const T* packed, const TensorView& x, const TensorView& y)
      : mlp_(mlp), packed_(packed), x_(x), y_(y), from_(x), to_(y) {}

  /// Computes samples [begin, end).
  void run(int64_t begin, int64_t end) {
    from_.seek(begin);
    to_.seek(begin);
    while (begin < end) {
      const int64_t left = end - begin;
      if (left - kLanes<T> >= mlp_.least_by_columns()) {
        begin += by_columns<2>(left);
      } else if (left >= mlp_.least_by_columns()) {
        begin += by_columns<1>(left);
      } else {
        begin += by_rows(left);
      }
    }
  }

 private:
  int64_t by_rows(int64_t count) {
    const int64_t inputs = x_.shape.back();
    const int64_t outputs = y_.shape.back();
    from_.next(count, offsets_.data());
    with_memory(x_, [&, step = x_.strides.back()](const auto* memory) {
      for (int64_t s = 0; s < count; ++s) {
        const auto* sample = memory + offset(s);
        for (int64_t i = 0; i < inputs; ++i) {
          one_[s * inputs + i] = static_cast<T>(sample[i * step]);
        }
      }
    });
    T* in = one_;
    T* out = two_;
    int64_t stride = inputs;
    const T* at = packed_;
    for (const MlpLayer& each : mlp_.layers()) {
      const Layer<T> layer = next_layer(each, at);
      layer_by_rows(layer, in, stride, count, out);
      stride = layer.row;
      std::swap(in, out);
    }
    to_.next(count, offsets_.data());
    with_memory(y_, [&, step = y_.strides.back()]<class To>(To* memory) {
      for (int64_t s = 0; s < count; ++s) {
        To* sample = memory + offset(s);
        for (int64_t o = 0; o < outputs; ++o) {
          sample[o * step] = static_cast<To>(in[s * stride + o]);
        }
      }
    });
    return count;
  }

  template <int kRegisters>
  int64_t by_columns(int64_t left) {
    constexpr int64_t kSamples = kRegisters * kLanes<T>;
    const int64_t count = std::min(left, kSamples);
    from_.next(count, offsets_.data());
    std::fill(offsets_.begin() + count, offsets_.end(), offset(count - 1));  // the last sample fills the registers
    with_memory(x_, [&, step = x_.strides.back()](const auto* memory) {
      for (int64_t i = 0; i < x_.shape.back(); ++i) {
        for (int64_t s = 0; s < kSamples; ++s) {
          one_[i * kSamples + s] = static_cast<T>(memory[offset(s) + i * step]);
        }
      }
    });
    T* in = one_;
    T* out = two_;
    const T* at = packed_;
    for (const MlpLayer& each : mlp_.layers()) {
      layer_by_columns<kRegisters>(next_layer(each, at), in, out);
      std::swap(in, out);
    }
    to_.next(count, offsets_.data());
    with_memory(y_, [&, step = y_.strides.back()]<class To>(To* memory) {
      for (int64_t o = 0; o < y_.shape.back(); ++o) {
        for (int64_t s = 0; s < count; ++s) {
          memory[offset(s) + o * step] = static_cast<To>(in[o * kSamples + s]);
        }
      }
    });
    return count;
  }

  [[nodiscard]] int64_t offset(int64_t sample) const { return offsets_[static_cast<std::size_t>(sample)]; }

  const Mlp& mlp_;
  const T* packed_;
  const TensorView& x_;
  const TensorView& y_;
  Samples from_, to_;
  std::array<int64_t, kBlock<T>> offsets_;
  alignas(64) T one_[Mlp::kMostWidth * kBlock<T>];
  alignas(64) T two_[Mlp::kMostWidth * kBlock<T>];
};

}  // namespace

int64_t mlp_packed_elements(DType dtype, const MlpLayer& layer) {
  const auto lanes = static_cast<int64_t>(lanes::kBytes / size_of(dtype));
  return align_up((layer.inputs + 1) * row_of(layer.outputs, lanes), lanes);
}

MlpCosts mlp_costs(DType dtype, std::span<const MlpLayer> layers) {
  const auto lanes = static_cast<int64_t>(lanes::kBytes / size_of(dtype));
  int64_t rows = 0;     // multiply-adds of registers for one sample by rows
  int64_t columns = 0;  // the same for a register of samples by columns
  for (const MlpLayer& each : layers) {
    const int64_t terms = each.inputs + (each.activation != Activation::identity ? kActivationWork : 0);
    const int64_t row = row_of(each.outputs, lanes);
    rows += terms * (each.outputs <= kFewOutputs ? row : row / lanes);
    columns += terms * each.outputs;
  }
  return {.least_by_columns = std::min(lanes, columns / rows + 1), .grain = 1 + kWork / (columns * 2 * lanes)};
}

void mlp_pack(CpuContext& /*context*/, const Mlp& mlp, int layer, const TensorView& weight, const TensorView& bias,
              const TensorView& packed) {
  visit_compute(mlp.dtype(), "mlp_pack", [&]<class T>(std::type_identity<T>) {
    T* to = static_cast<T*>(packed.data);
    for (int before = 0; before < layer; ++before) {
      to += mlp_packed_elements(mlp.dtype(), mlp.layers()[static_cast<std::size_t>(before)]);
    }
    const MlpLayer& here = mlp.layers()[static_cast<std::size_t>(layer)];
    const int64_t row = row_of(here.outputs, kLanes<T>);
    for (int64_t j = 0; j < row; ++j) {
      const int64_t o = std::min(j, here.outputs - 1);
      to[j] = bias.given() ? bias.as<T>()[o * bias.strides[0]] : T{0};
      for (int64_t i = 0; i < here.inputs; ++i) {
        to[(i + 1) * row + j] = weight.as<T>()[o * weight.strides[0] + i * weight.strides[1]];
      }
    }
  });
}

void mlp_forward(CpuContext& context, const Mlp& mlp, const TensorView& packed, const TensorView& x,
                 const TensorView& y) {
  visit_compute(mlp.dtype(), "mlp_forward", [&]<class T>(std::type_identity<T>) {
    const int64_t count = x.numel() / x.shape.back();
    const int64_t blocks = (count + kBlock<T> - 1) / kBlock<T>;
    parallel_ranges(context, blocks, mlp.grain(), [&](int64_t begin, int64_t end) {
      Pass<T>(mlp, static_cast<const T*>(packed.data), x, y).run(begin * kBlock<T>, std::min(count, end * kBlock<T>));
    });
  });
}

}  // namespace lockstep::ops::backend
