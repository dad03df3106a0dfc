#include <algorithm>
#include <cstdint>

#include <lockstep/kernels/cpu/activation.hpp>
#include <lockstep/kernels/cpu/element.hpp>
#include <lockstep/kernels/detail/providers.hpp>
#include <lockstep/runtime/base/align.hpp>
#include <lockstep/runtime/base/parallel.hpp>

// Plain loops in a fixed order whatever the number of threads: the oracle of the other providers.

namespace lockstep::ops::reference {
namespace {

constexpr std::int64_t kBlock = 64;     // columns of c that are summed together in one local array
constexpr std::size_t kAlignment = 64;  // of the workspace
constexpr std::int64_t kWork = 131072;  // multiply-adds or copies worth waking another thread for

/// b: (batch, k, n). A transposed b was turned round before, so that the innermost loop runs over adjacent columns.
template <class T, class Out>
void multiply(const CpuContext& context, const MatmulDesc& d, const T* a, const T* b, const Value<T>* bias, Out* c) {
  using V = Value<T>;
  const std::int64_t a_row = d.transpose_a ? 1 : d.k;
  const std::int64_t a_column = d.transpose_a ? d.m : 1;
  const std::int64_t blocks = (d.n + kBlock - 1) / kBlock;
  parallel_ranges(context, d.products() * d.m * blocks, 1 + kWork / (d.k * std::min(kBlock, d.n)),
                  [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t item = begin; item < end; ++item) {
                      const std::int64_t row_of_all = item / blocks;
                      const std::int64_t product = row_of_all / d.m;
                      const std::int64_t i = row_of_all % d.m;
                      const std::int64_t j0 = item % blocks * kBlock;
                      const std::int64_t count = std::min(kBlock, d.n - j0);
                      const T* from_a = a + product * d.m * d.k;
                      const T* from_b = b + product * d.k * d.n;
                      V sum[kBlock] = {};
                      for (std::int64_t l = 0; l < d.k; ++l) {
                        const V value = value_of(from_a[i * a_row + l * a_column]);
                        const T* row = from_b + l * d.n + j0;
                        for (std::int64_t j = 0; j < count; ++j) {
                          sum[j] += value * value_of(row[j]);
                        }
                      }
                      Out* out = c + row_of_all * d.n + j0;
                      for (std::int64_t j = 0; j < count; ++j) {
                        const V before = d.grad_mode == GradMode::accumulate ? value_of(out[j])
                                                                             : (bias != nullptr ? bias[j0 + j] : V{0});
                        sum[j] = before + sum[j];
                      }
                      activations::visit(d.activation, [&]<class Function>(Function) {
                        for (std::int64_t j = 0; j < count; ++j) {
                          out[j] = Out(Function::value(sum[j]));
                        }
                      });
                    }
                  });
}

/// from: (batch, rows, columns), to: (batch, columns, rows).
template <class T>
void transpose(const CpuContext& context, const T* from, std::int64_t batch, std::int64_t rows, std::int64_t columns,
               T* to) {
  parallel_ranges(context, batch * columns, 1 + kWork / rows, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t item = begin; item < end; ++item) {
      const T* matrix = from + item / columns * rows * columns;
      const std::int64_t j = item % columns;
      for (std::int64_t i = 0; i < rows; ++i) {
        to[item * rows + i] = matrix[i * columns + j];
      }
    }
  });
}

class Plan final : public MatmulPlan {
 public:
  explicit Plan(const MatmulDesc& desc) : MatmulPlan(Device::cpu(), desc) {}

  std::size_t workspace_bytes() const override {
    if (!desc().transpose_b) {
      return 0;
    }
    const std::size_t bytes = static_cast<std::size_t>(desc().products() * desc().n * desc().k) * size_of(desc().dtype);
    return align_up(bytes, kAlignment);
  }
  bool deterministic() const override { return true; }
  std::string choice() const override { return std::string(kMatmul.name); }

  void run(Context& context, const TensorView& a, const TensorView& b, const TensorView& bias, const TensorView& c,
           const TensorView& workspace) const override {
    const auto& cpu = static_cast<const CpuContext&>(context);
    visit_element(desc().dtype, "matmul", [&]<class T>(std::type_identity<T>) {
      const T* columns = b.as<T>();
      if (desc().transpose_b) {
        T* turned = static_cast<T*>(workspace.data);  // (batch, k, n)
        transpose(cpu, b.as<T>(), desc().products(), desc().n, desc().k, turned);
        columns = turned;
      }
      const Value<T>* row = desc().bias ? bias.as<Value<T>>() : nullptr;
      visit_element(desc().c_dtype(), "matmul", [&]<class Out>(std::type_identity<Out>) {
        if constexpr (std::is_same_v<Out, T> || std::is_same_v<Out, Value<T>>) {  // there are no others
          multiply(cpu, desc(), a.as<T>(), columns, row, c.as<Out>());
        }
      });
    });
  }
};

bool supports(const MatmulDesc& desc) {
  return desc.dtype == DType::f32 || desc.dtype == DType::f64 || desc.dtype == DType::bf16;
}

std::vector<std::string> choices(Context& /*context*/, const MatmulDesc& desc) {
  return supports(desc) ? std::vector<std::string>{std::string(kMatmul.name)} : std::vector<std::string>{};
}

std::unique_ptr<MatmulPlan> plan(Context& /*context*/, const MatmulDesc& desc, const std::string& choice) {
  require<UsageError>(choice == kMatmul.name, "matmul: choice is '", choice, "', expected '", kMatmul.name, "'");
  require<UnsupportedError>(supports(desc), "matmul: reference takes f32, f64 and bf16, not ", desc.dtype);
  return std::make_unique<Plan>(desc);
}

}  // namespace

constinit const MatmulProvider kMatmul{"reference", DeviceKind::cpu, choices, plan};

}  // namespace lockstep::ops::reference
