#include <string>
#include <vector>

#include <lockstep/kernels/detail/providers.hpp>
#include <lockstep/kernels/onednn/onednn.hpp>

namespace lockstep::ops::onednn {
namespace {

using dnnl::memory;

/// Describes an operand of the product: (rows, columns) if `batch` is 0, otherwise (batch, rows, columns). If
/// `transposed` is true, memory holds the transposed matrix.
memory::desc matrix(memory::data_type type, std::int64_t batch, std::int64_t rows, std::int64_t columns,
                    bool transposed = false) {
  using tag = memory::format_tag;
  if (batch == 0) {
    return {{rows, columns}, type, transposed ? tag::ba : tag::ab};
  }
  return {{batch, rows, columns}, type, transposed ? tag::acb : tag::abc};
}

class Plan final : public MatmulPlan {
 public:
  Plan(Context& context, const MatmulDesc& d, bool via_f32)
      : MatmulPlan(context.device(), d),
        via_f32_(via_f32),
        threads_(static_cast<CpuContext&>(context).threads()),
        program_(library(context)) {
    run_with_threads(threads_, [&] { build(library(context)); });
  }

  std::size_t workspace_bytes() const override { return program_.workspace_bytes(); }
  bool deterministic() const override { return true; }
  std::string choice() const override { return name(via_f32_); }
  std::string implementation() const override { return program_.implementation(); }

  void run(Context& /*context*/, const TensorView& a, const TensorView& b, const TensorView& bias, const TensorView& c,
           const TensorView& workspace) const override {
    translate_errors("matmul", [&] {
      run_with_threads(threads_, [&] { program_.run({a.data, b.data, c.data}, bias.data, workspace.data); });
    });
  }

  static std::string name(bool via_f32) { return via_f32 ? "onednn:via-f32" : "onednn"; }

 private:
  void build(const Library& lib) {
    const MatmulDesc& d = desc();
    const auto f32 = memory::data_type::f32;
    const memory::data_type inner = via_f32_ ? f32 : type_of(d.dtype);
    const memory::data_type inner_c = via_f32_ ? f32 : type_of(d.c_dtype());
    // The bias is (1, n), or (1, 1, n) with a batch: oneDNN wants as many axes as the operands have.
    const memory::desc bias = d.bias ? matrix(f32, d.batch == 0 ? 0 : 1, 1, d.n) : memory::desc();
    const auto a = [&](memory::data_type type) { return matrix(type, d.batch, d.m, d.k, d.transpose_a); };
    const auto b = [&](memory::data_type type) { return matrix(type, d.batch, d.k, d.n, d.transpose_b); };
    const auto c = [&](memory::data_type type) { return matrix(type, d.batch, d.m, d.n); };
    const bool accumulate = d.grad_mode == GradMode::accumulate;
    const bool add_copy = accumulate && inner_c != type_of(d.c_dtype());
    const Made made = make_matmul(lib, a(inner), b(inner), bias, c(inner_c), accumulate && !add_copy, d.activation);
    require<UnsupportedError>(!made.is_reference(), "matmul: oneDNN has only unoptimised loops (", made.implementation,
                              ") for this product, expected optimised ones or another library");
    const memory::data_type outer = type_of(d.dtype);
    program_.build(made, {a(outer), b(outer), c(type_of(d.c_dtype()))}, {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST},
                   bias, add_copy);
  }

  bool via_f32_;
  int threads_;
  Program program_;
};

std::unique_ptr<MatmulPlan> make_plan(Context& context, const MatmulDesc& desc, bool via_f32) {
  require<UnsupportedError>(has_type(desc.dtype), "matmul: dtype is ", desc.dtype,
                            ", expected f32 or bf16 with onednn");
  require<UnsupportedError>(!via_f32 || desc.dtype == DType::bf16, "matmul: ", Plan::name(true), " with dtype ",
                            desc.dtype, ", expected bf16");
  return translate_errors("matmul", [&] { return std::make_unique<Plan>(context, desc, via_f32); });
}

std::vector<std::string> choices(Context& context, const MatmulDesc& desc) {
  std::vector<std::string> all;
  const bool first = desc.dtype == DType::bf16 && !multiplies_bf16();
  for (const bool via_f32 : {first, !first}) {
    try {
      all.push_back(make_plan(context, desc, via_f32)->choice());
    } catch (const UnsupportedError&) {
      // this plan is not one of the choices
    }
  }
  return all;
}
std::unique_ptr<MatmulPlan> plan(Context& context, const MatmulDesc& desc, const std::string& choice) {
  const bool via_f32 = choice == Plan::name(true);
  require<UsageError>(via_f32 || choice == Plan::name(false), "matmul: choice is '", choice, "', expected '",
                      Plan::name(false), "' or for bf16 '", Plan::name(true), "'");
  return make_plan(context, desc, via_f32);
}

}  // namespace

constinit const MatmulProvider kMatmul{"onednn",
                                       DeviceKind::cpu,
                                       choices,
                                       plan,
                                       library_version,
                                       /*relu_keeps_nan=*/false};

}  // namespace lockstep::ops::onednn
