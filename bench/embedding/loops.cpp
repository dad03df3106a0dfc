#include "bench/embedding/loops.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

namespace lockstep::bench {
namespace {

constexpr std::int64_t kSamples = 64;

/// Computes y (outputs) of x (inputs); w: (inputs, outputs).
template <int inputs, int outputs, bool tanh, class T>
[[gnu::always_inline]] inline void dense(const T* __restrict x, const T* __restrict w, const T* __restrict b,
                                         T* __restrict y) {
  for (int o = 0; o < outputs; ++o) {
    y[o] = b[o];
  }
  for (int i = 0; i < inputs; ++i) {
    for (int o = 0; o < outputs; ++o) {
      y[o] += x[i] * w[i * outputs + o];
    }
  }
  for (int o = 0; tanh && o < outputs; ++o) {
    y[o] = std::tanh(y[o]);
  }
}

}  // namespace

template <class T>
Loops<T>::Loops(std::vector<std::int64_t> widths, const std::vector<std::vector<T>>& weights)
    : widths_(std::move(widths)), weights_(weights) {
  for (std::size_t l = 0; l + 1 < widths_.size(); ++l) {
    const auto in = static_cast<std::size_t>(widths_[l]);
    const auto out = static_cast<std::size_t>(widths_[l + 1]);
    std::vector<T>& to = transposed_.emplace_back(in * out);
    for (std::size_t o = 0; o < out; ++o) {
      for (std::size_t i = 0; i < in; ++i) {
        to[i * out + o] = weights_[2 * l][o * in + i];
      }
    }
  }
  one_.resize(static_cast<std::size_t>(*std::max_element(widths_.begin(), widths_.end()) * kSamples));
  two_.resize(one_.size());
}

template <class T>
void Loops<T>::outputs_innermost(const T* x, T* y, std::int64_t n) const {
  const auto w = [this](std::size_t layer) { return transposed_[layer].data(); };
  const auto b = [this](std::size_t layer) { return weights_[2 * layer + 1].data(); };
  alignas(64) T one[500];
  alignas(64) T two[500];
  for (std::int64_t s = 0; s < n; ++s) {
    if (widths_.size() == 4) {
      dense<4, 32, true>(x + 4 * s, w(0), b(0), one);
      dense<32, 32, true>(one, w(1), b(1), two);
      dense<32, 1, false>(two, w(2), b(2), y + s);
    } else {
      dense<500, 500, true>(x + 500 * s, w(0), b(0), one);
      dense<500, 500, true>(one, w(1), b(1), two);
      dense<500, 500, true>(two, w(2), b(2), one);
      dense<500, 500, true>(one, w(3), b(3), two);
      dense<500, 200, false>(two, w(4), b(4), y + 200 * s);
    }
  }
}

template <class T>
void Loops<T>::samples_innermost(const T* x, T* y, std::int64_t n) {
  const std::size_t layers = transposed_.size();
  for (std::int64_t first = 0; first < n; first += kSamples) {
    const std::int64_t m = std::min(kSamples, n - first);
    const T* from = x + first;
    std::int64_t stride = n;
    for (std::size_t l = 0; l < layers; ++l) {
      const bool last = l + 1 == layers;
      const std::int64_t to_stride = last ? n : kSamples;
      T* to = last ? y + first : l % 2 == 0 ? one_.data() : two_.data();
      for (std::int64_t o = 0; o < widths_[l + 1]; ++o) {
        T sum[kSamples];
        std::fill_n(sum, m, weights_[2 * l + 1][static_cast<std::size_t>(o)]);
        const T* __restrict w = weights_[2 * l].data() + o * widths_[l];
        for (std::int64_t i = 0; i < widths_[l]; ++i) {
          const T* __restrict in = from + i * stride;
          for (std::int64_t s = 0; s < m; ++s) {
            sum[s] += w[i] * in[s];
          }
        }
        T* __restrict row = to + o * to_stride;
        for (std::int64_t s = 0; s < m; ++s) {
          row[s] = last ? sum[s] : std::tanh(sum[s]);
        }
      }
      from = to;
      stride = to_stride;
    }
  }
}

template class Loops<float>;
template class Loops<double>;

}  // namespace lockstep::bench
