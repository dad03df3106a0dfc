#include <lockstep/kernels/embedding.hpp>

#include <algorithm>
#include <cstdint>

#include <lockstep/kernels/cpu/element.hpp>
#include <lockstep/runtime/context/parallel.hpp>

namespace lockstep::ops::backend {
namespace {

constexpr int64_t kGrain = 16384;  // number of elements that justify another thread
constexpr int64_t kColumns = 16;   // number of columns that justify another thread: a cache line of f32

bool in_table(std::int32_t id, int64_t vocabulary) {
  return id >= 0 && id < vocabulary;
}

}  // namespace

void embedding_forward(CpuContext& context, const TensorView& table, const TensorView& ids, const TensorView& positions,
                       const TensorView& valid, const TensorView& y, const TensorView& bad_ids) {
  const int64_t tokens = ids.numel();
  const int64_t vocabulary = table.shape[0];
  const int64_t width = table.shape[1];
  const int64_t length = ids.shape.back();
  const auto* id = ids.as<std::int32_t>();  // shape (M)
  visit_element(table.dtype, "embedding_forward", [&]<class T>(std::type_identity<T>) {
    const T* rows = table.as<T>();                                      // shape (V, D)
    const T* places = positions.given() ? positions.as<T>() : nullptr;  // shape (T, D)
    T* to = y.as<T>();                                                  // shape (M, D)
    const int64_t grain = std::max(int64_t{1}, kGrain / std::max(int64_t{1}, width));
    parallel_ranges(context, tokens, grain, [=](int64_t begin, int64_t end) {
      for (int64_t token = begin; token < end; ++token) {
        T* out = to + token * width;
        if (!in_table(id[token], vocabulary)) {
          std::fill_n(out, width, T{0});
          continue;
        }
        const T* row = rows + id[token] * width;
        if (places == nullptr) {
          std::copy_n(row, width, out);
          continue;
        }
        const T* place = places + token % length * width;
        for (int64_t d = 0; d < width; ++d) {
          out[d] = T(value_of(row[d]) + value_of(place[d]));
        }
      }
    });
  });
  if (bad_ids.given() && tokens > 0) {
    const int64_t samples = ids.shape[0];
    const int64_t counting = valid.given() ? std::clamp(*valid.as<int64_t>(), int64_t{0}, samples) : samples;
    const int64_t end = counting * (tokens / samples);
    const auto bad = std::count_if(id, id + end, [=](std::int32_t i) { return !in_table(i, vocabulary); });
    *bad_ids.as<double>() += static_cast<double>(bad);
  }
}

void embedding_backward(CpuContext& context, const TensorView& dy, const TensorView& ids, GradMode mode,
                        const TensorView& dtable, const TensorView& /*workspace*/) {
  const int64_t tokens = ids.numel();
  const int64_t vocabulary = dtable.shape[0];
  const int64_t width = dtable.shape[1];
  const auto* id = ids.as<std::int32_t>();  // shape (M)
  visit_element(dy.dtype, "embedding_backward", [&]<class T>(std::type_identity<T>) {
    const T* from = dy.as<T>();          // shape (M, D)
    auto* rows = dtable.as<Value<T>>();  // shape (V, D)
    if (mode == GradMode::overwrite) {
      parallel_ranges(context, vocabulary * width, 4 * kGrain,
                      [=](int64_t begin, int64_t end) { std::fill(rows + begin, rows + end, Value<T>{0}); });
    }
    // Each thread takes some columns of all tokens. If threads divided the ids, their work would be unequal, because a
    // few ids make up most of a text.
    parallel_ranges(context, width, kColumns, [=](int64_t begin, int64_t end) {
      for (int64_t token = 0; token < tokens; ++token) {
        if (in_table(id[token], vocabulary)) {
          Value<T>* row = rows + id[token] * width;
          const T* gradient = from + token * width;
          for (int64_t d = begin; d < end; ++d) {
            row[d] += value_of(gradient[d]);
          }
        }
      }
    });
  });
}

}  // namespace lockstep::ops::backend
