#include <lockstep/kernels/layer_norm.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include <lockstep/runtime/parallel.hpp>

namespace lockstep::ops::backend {
namespace {

using std::int64_t;

// All sums in double.

constexpr int64_t kGrain = 16384;  // elements that are worth a thread
constexpr int64_t kChunkRows = 64;
constexpr int64_t kMostChunks = 64;

int64_t grain_of(int64_t channels) {
  return std::max(int64_t{1}, kGrain / channels);
}

/// Rows of one partial sum: depends on the shape only.
int64_t chunk_rows(int64_t rows) {
  return std::max(kChunkRows, (rows + kMostChunks - 1) / kMostChunks);
}

/// dx of one row. dy may be dx.
template <class T>
void backward_row(const T* dy, const T* x, const T* weight, double mean, double inv_std, int64_t channels, T* dx) {
  double sum = 0;         // of g
  double projection = 0;  // of g * xhat
  for (int64_t c = 0; c < channels; ++c) {
    const double g = static_cast<double>(dy[c]) * static_cast<double>(weight[c]);
    sum += g;
    projection += g * (static_cast<double>(x[c]) - mean) * inv_std;
  }
  const double per_channel = 1.0 / static_cast<double>(channels);
  for (int64_t c = 0; c < channels; ++c) {
    const double g = static_cast<double>(dy[c]) * static_cast<double>(weight[c]);
    const double xhat = (static_cast<double>(x[c]) - mean) * inv_std;
    dx[c] = static_cast<T>(inv_std * (g - (sum + xhat * projection) * per_channel));
  }
}

}  // namespace

void layer_norm_forward(CpuContext& context, const TensorView& x, const TensorView& weight, const TensorView& bias,
                        double epsilon, const TensorView& y, const TensorView& mean, const TensorView& inv_std) {
  visit_compute(x.dtype, "layer_norm_forward", [&]<class T>(std::type_identity<T>) {
    const int64_t channels = x.shape.back();
    const T* px = x.as<T>();  // (M, C)
    T* py = y.as<T>();        // (M, C)
    const T* pw = weight.as<T>();
    const T* pb = bias.as<T>();
    T* pm = mean.given() ? mean.as<T>() : nullptr;
    T* ps = mean.given() ? inv_std.as<T>() : nullptr;
    parallel_ranges(context, x.numel() / channels, grain_of(channels), [=](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* from = px + row * channels;
        T* to = py + row * channels;
        double sum = 0;
        for (int64_t c = 0; c < channels; ++c) {
          sum += static_cast<double>(from[c]);
        }
        const double m = sum / static_cast<double>(channels);
        double squares = 0;
        for (int64_t c = 0; c < channels; ++c) {
          const double deviation = static_cast<double>(from[c]) - m;
          squares += deviation * deviation;
        }
        const double s = 1.0 / std::sqrt(squares / static_cast<double>(channels) + epsilon);
        for (int64_t c = 0; c < channels; ++c) {
          to[c] = static_cast<T>((static_cast<double>(from[c]) - m) * s * static_cast<double>(pw[c]) +
                                 static_cast<double>(pb[c]));
        }
        if (pm != nullptr) {
          pm[row] = static_cast<T>(m);
          ps[row] = static_cast<T>(s);
        }
      }
    });
  });
}

std::size_t layer_norm_workspace_bytes(const CpuContext& /*context*/, const TensorView& x) {
  const int64_t channels = x.shape.back();
  const int64_t rows = x.numel() / channels;
  const int64_t chunks = (rows + chunk_rows(rows) - 1) / chunk_rows(rows);
  return static_cast<std::size_t>(chunks * 2 * channels) * sizeof(double);
}

void layer_norm_backward(CpuContext& context, const TensorView& dy, const TensorView& x, const TensorView& weight,
                         const TensorView& mean, const TensorView& inv_std, GradMode mode, const TensorView& dx,
                         const TensorView& dweight, const TensorView& dbias, const TensorView& workspace) {
  visit_compute(x.dtype, "layer_norm_backward", [&]<class T>(std::type_identity<T>) {
    const int64_t channels = x.shape.back();
    const int64_t rows = x.numel() / channels;
    const T* pdy = dy.as<T>();  // (M, C)
    const T* px = x.as<T>();    // (M, C)
    const T* pw = weight.as<T>();
    const T* pm = mean.as<T>();
    const T* ps = inv_std.as<T>();
    if (mode != GradMode::ignore) {
      auto* partial = static_cast<double*>(workspace.data);  // (chunks, 2, C)
      parallel_chunks(context, rows, chunk_rows(rows), [=](int64_t chunk, int64_t begin, int64_t end) {
        double* sums = partial + chunk * 2 * channels;
        std::fill_n(sums, 2 * channels, 0.0);
        for (int64_t row = begin; row < end; ++row) {
          const auto m = static_cast<double>(pm[row]);
          const auto s = static_cast<double>(ps[row]);
          for (int64_t c = 0; c < channels; ++c) {
            const auto g = static_cast<double>(pdy[row * channels + c]);
            sums[c] += g * (static_cast<double>(px[row * channels + c]) - m) * s;
            sums[channels + c] += g;
          }
        }
      });
      const int64_t chunks = (rows + chunk_rows(rows) - 1) / chunk_rows(rows);
      const bool add = mode == GradMode::accumulate;
      T* pdw = dweight.as<T>();
      T* pdb = dbias.as<T>();
      parallel_ranges(context, channels, grain_of(2 * chunks + 1), [=](int64_t begin, int64_t end) {
        for (int64_t c = begin; c < end; ++c) {
          double w = add ? static_cast<double>(pdw[c]) : 0;
          double b = add ? static_cast<double>(pdb[c]) : 0;
          for (int64_t chunk = 0; chunk < chunks; ++chunk) {
            w += partial[chunk * 2 * channels + c];
            b += partial[(chunk * 2 + 1) * channels + c];
          }
          pdw[c] = static_cast<T>(w);
          pdb[c] = static_cast<T>(b);
        }
      });
    }
    if (dx.given()) {  // last, because it may take the place of dy
      T* pdx = dx.as<T>();
      parallel_ranges(context, rows, grain_of(channels), [=](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          const int64_t at = row * channels;
          backward_row(pdy + at, px + at, pw, static_cast<double>(pm[row]), static_cast<double>(ps[row]), channels,
                       pdx + at);
        }
      });
    }
  });
}

}  // namespace lockstep::ops::backend
