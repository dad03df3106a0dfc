#include <lockstep/kernels/mlp.hpp>

#include <algorithm>
#include <array>

#include <lockstep/kernels/cpu/activation.hpp>
#include <lockstep/kernels/cpu/element.hpp>
#include <lockstep/kernels/cpu/lanes.hpp>
#include <lockstep/runtime/base/align.hpp>
#include <lockstep/runtime/context/parallel.hpp>

// A block of samples passes all layers before the next block begins. There are two ways to compute a block:
//
//   rows     one sample after the other; the lanes of a register are outputs; used for few samples
//   columns  the lanes of a register are samples; one or two registers of samples at a time
//
// Both ways give the same bits, because each sum is one chain of multiply-adds in the order of the inputs.
//
// Packed parameters of a layer: the bias (row), then a row of weights for each input (inputs, row). `row` is the number
// of outputs, rounded up to whole registers; the additional columns repeat the last output. In a layer with at most
// kFewOutputs outputs, `row` is the number of outputs.

namespace lockstep::ops::backend {
namespace {

using lanes::Lanes;

constexpr int64_t kFewOutputs = 4;                  // largest number of outputs for which packed rows are not padded
constexpr int64_t kWork = 131072;                   // number of multiply-adds that justify another thread
constexpr int64_t kActivationWork = 25;             // number of multiply-adds that take as long as one activation
constexpr int kRowsAtATime = 4;                     // number of samples whose sums share the loads of the weights
constexpr int kTall = lanes::kBytes == 64 ? 8 : 4;  // number of outputs summed at a time, two registers per output

template <class T>
constexpr int64_t kLanes = lanes::kCount<T>;
template <class T>
constexpr int64_t kBlock = 2 * lanes::kCount<T>;  // largest number of samples of a block

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

/// Computes the sums of kRegisters registers of outputs, from output `first` on, for kRows samples. y: (kRows, row).
/// Rows of x are `stride` elements apart.
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

/// Does the work of rows_tile() for a layer with at most kFewOutputs outputs. All lanes of a register hold the same
/// sum.
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

/// Computes the outputs y (count, row) of a layer for the samples x (count, stride).
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

/// Computes the sums of outputs [first, first + kOutputs) for kRegisters registers of samples. y: (outputs, samples).
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

/// Computes the outputs y (outputs, samples) of a layer for the samples x (inputs, samples), which fill kRegisters
/// registers per input.
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

/// A position among the samples of a view.
class Cursor {
 public:
  explicit Cursor(const MlpSamples& of) : of_(of) {}
  void seek(int64_t sample) {
    offset_ = 0;
    for (int a = 0; a < of_.axes; ++a) {
      const bool last = a + 1 == of_.axes;
      at(a) = last ? sample : sample % axis(a).extent;
      sample = last ? 0 : sample / axis(a).extent;
      offset_ += at(a) * axis(a).stride;
    }
  }
  /// Writes the offsets of the next `count` samples to `offsets`, and moves the cursor past these samples.
  void next(int64_t count, int64_t* offsets) {
    if (of_.axes <= 1) {
      const int64_t stride = axis(0).stride;
      for (int64_t s = 0; s < count; ++s) {
        offsets[s] = offset_ + s * stride;
      }
      offset_ += count * stride;
      return;
    }
    for (int64_t s = 0; s < count; ++s) {
      offsets[s] = offset_;
      for (int a = 0; a < of_.axes; ++a) {
        offset_ += axis(a).stride;
        if (++at(a) < axis(a).extent || a + 1 == of_.axes) {
          break;
        }
        offset_ -= at(a) * axis(a).stride;
        at(a) = 0;
      }
    }
  }

 private:
  [[nodiscard]] const MlpSamples::Axis& axis(int a) const { return of_.axis[static_cast<std::size_t>(a)]; }
  int64_t& at(int a) { return at_[static_cast<std::size_t>(a)]; }
  const MlpSamples& of_;
  std::array<int64_t, Shape::kMaxRank> at_{};  ///< position on each axis
  int64_t offset_ = 0;
};

/// Calls f(pointer) with `memory`, a pointer to void, as a pointer to float or double.
template <class F>
void with_memory(DType dtype, const void* memory, F&& f) {
  dtype == DType::f32 ? f(static_cast<const float*>(memory)) : f(static_cast<const double*>(memory));
}
template <class F>
void with_memory(DType dtype, void* memory, F&& f) {
  dtype == DType::f32 ? f(static_cast<float*>(memory)) : f(static_cast<double*>(memory));
}

/// One call of mlp_run(), with memory for the outputs of a layer, which are the inputs of the next layer.
template <class T>
class Pass {
 public:
  Pass(const MlpCall& call, const void* x, void* y) : call_(call), x_(x), y_(y), from_(call.from), to_(call.to) {}

  /// Computes samples [begin, end).
  void run(int64_t begin, int64_t end) {
    from_.seek(begin);
    to_.seek(begin);
    while (begin < end) {
      const int64_t left = end - begin;
      if (left - kLanes<T> >= call_.mlp->least_by_columns()) {
        begin += by_columns<2>(left);
      } else if (left >= call_.mlp->least_by_columns()) {
        begin += by_columns<1>(left);
      } else {
        begin += by_rows(left);
      }
    }
  }

 private:
  int64_t by_rows(int64_t count) {
    const int64_t inputs = call_.from.features;
    const int64_t outputs = call_.to.features;
    from_.next(count, offsets_.data());
    with_memory(call_.from.dtype, x_, [&, step = call_.from.step](const auto* memory) {
      for (int64_t s = 0; s < count; ++s) {
        const auto* sample = memory + offset(s);
        for (int64_t i = 0; i < inputs; ++i) {
          memory_[s * inputs + i] = static_cast<T>(sample[i * step]);
        }
      }
    });
    T* in = memory_;
    T* out = memory_ + count * call_.mlp->widest();
    int64_t stride = inputs;
    const T* at = static_cast<const T*>(call_.parameters);
    for (const MlpLayer& each : call_.mlp->layers()) {
      const Layer<T> layer = next_layer(each, at);
      layer_by_rows(layer, in, stride, count, out);
      stride = layer.row;
      std::swap(in, out);
    }
    to_.next(count, offsets_.data());
    with_memory(call_.to.dtype, y_, [&, step = call_.to.step]<class To>(To* memory) {
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
    std::fill(offsets_.begin() + count, offsets_.end(), offset(count - 1));  // unused lanes repeat the last sample
    with_memory(call_.from.dtype, x_, [&, step = call_.from.step](const auto* memory) {
      const bool beside = count == kSamples && call_.from.samples_beside();  // true: a feature's values are contiguous
      for (int64_t i = 0; i < call_.from.features; ++i, memory += step) {
        const auto* first = memory + offset(0);
        for (int64_t s = 0; beside && s < kSamples; ++s) {
          memory_[i * kSamples + s] = static_cast<T>(first[s]);
        }
        for (int64_t s = 0; !beside && s < kSamples; ++s) {
          memory_[i * kSamples + s] = static_cast<T>(memory[offset(s)]);
        }
      }
    });
    T* in = memory_;
    T* out = memory_ + kSamples * call_.mlp->widest();
    const T* at = static_cast<const T*>(call_.parameters);
    for (const MlpLayer& each : call_.mlp->layers()) {
      layer_by_columns<kRegisters>(next_layer(each, at), in, out);
      std::swap(in, out);
    }
    to_.next(count, offsets_.data());
    with_memory(call_.to.dtype, y_, [&, step = call_.to.step]<class To>(To* memory) {
      for (int64_t o = 0; o < call_.to.features; ++o) {
        for (int64_t s = 0; s < count; ++s) {
          memory[offset(s) + o * step] = static_cast<To>(in[o * kSamples + s]);
        }
      }
    });
    return count;
  }

  [[nodiscard]] int64_t offset(int64_t sample) const { return offsets_[static_cast<std::size_t>(sample)]; }

  const MlpCall& call_;
  const void* x_;
  void* y_;
  Cursor from_, to_;
  std::array<int64_t, kBlock<T>> offsets_;
  alignas(64) T memory_[2 * Mlp::kMostWidth * kBlock<T>];
};

}  // namespace

int64_t mlp_packed_elements(DType dtype, const MlpLayer& layer) {
  const auto lanes = static_cast<int64_t>(lanes::kBytes / size_of(dtype));
  return align_up((layer.inputs + 1) * row_of(layer.outputs, lanes), lanes);
}

MlpCosts mlp_costs(DType dtype, std::span<const MlpLayer> layers) {
  const auto lanes = static_cast<int64_t>(lanes::kBytes / size_of(dtype));
  int64_t rows = 0;     // number of register multiply-adds for one sample, computed by rows
  int64_t columns = 0;  // number of register multiply-adds for one register of samples, computed by columns
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

void mlp_run(CpuContext& context, const MlpCall& call, const void* x, void* y) {
  const int64_t count = call.from.count;
  visit_compute(call.mlp->dtype(), "mlp_forward", [&]<class T>(std::type_identity<T>) {
    const int64_t blocks = (count + kBlock<T> - 1) / kBlock<T>;
    parallel_ranges(context, blocks, call.mlp->grain(), [&](int64_t begin, int64_t end) {
      Pass<T>(call, x, y).run(begin * kBlock<T>, std::min(count, end * kBlock<T>));
    });
  });
}

}  // namespace lockstep::ops::backend
