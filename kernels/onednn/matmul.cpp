#include <string>
#include <utility>
#include <vector>

#include <lockstep/kernels/onednn/onednn.hpp>
#include <lockstep/kernels/providers.hpp>

namespace lockstep::ops::onednn {
namespace {

using dnnl::memory;

/// (rows, columns) of the product's operand, kept in memory as it is or turned round; (batch, rows, columns) with a
/// batch.
memory::desc matrix(std::int64_t batch, std::int64_t rows, std::int64_t columns, bool transposed) {
  if (batch == 0) {
    return {{rows, columns}, memory::data_type::f32, transposed ? memory::format_tag::ba : memory::format_tag::ab};
  }
  return {
      {batch, rows, columns}, memory::data_type::f32, transposed ? memory::format_tag::acb : memory::format_tag::abc};
}

/// (1, n), with as many axes as the operands.
memory::desc bias_row(std::int64_t batch, std::int64_t n) {
  return matrix(batch == 0 ? 0 : 1, 1, n, false);
}

class Plan final : public MatmulPlan {
 public:
  Plan(Context& context, const MatmulDesc& d)
      : MatmulPlan(context.device(), d),
        threads_(static_cast<CpuContext&>(context).threads()),
        library_(library(context)) {
    const ThreadScope scope(threads_);
    const memory::desc bias = d.bias ? bias_row(d.batch, d.n) : memory::desc();
    const Made made =
        make_matmul(library_, matrix(d.batch, d.m, d.k, d.transpose_a), matrix(d.batch, d.k, d.n, d.transpose_b), bias,
                    matrix(d.batch, d.m, d.n, false), d.grad_mode == GradMode::accumulate);
    require<UnsupportedError>(!made.is_reference(), "matmul: oneDNN has only unoptimised loops (", made.implementation,
                              ") for this");
    a_ = make_memory(library_, made.a);
    b_ = make_memory(library_, made.b);
    c_ = make_memory(library_, made.out);
    std::vector<std::pair<int, memory>> arguments{{DNNL_ARG_SRC, a_}, {DNNL_ARG_WEIGHTS, b_}, {DNNL_ARG_DST, c_}};
    if (d.bias) {
      bias_ = make_memory(library_, bias);
      arguments.emplace_back(DNNL_ARG_BIAS, bias_);
    }
    if (made.scratchpad.get_size() > 0) {
      layout_.add(made.scratchpad.get_size());
      scratchpad_ = make_memory(library_, made.scratchpad);
      arguments.emplace_back(DNNL_ARG_SCRATCHPAD, scratchpad_);
    }
    steps_.emplace_back(made.primitive, std::move(arguments));
  }

  std::size_t workspace_bytes() const override { return layout_.bytes(); }
  bool deterministic() const override { return true; }
  std::string choice() const override { return std::string(kMatmul.name); }

  void run(Context& /*context*/, const TensorView& a, const TensorView& b, const TensorView& bias, const TensorView& c,
           const TensorView& workspace) const override {
    const ThreadScope scope(threads_);
    translate_errors("matmul", [&] {
      a_.set_data_handle(a.data);
      b_.set_data_handle(b.data);
      c_.set_data_handle(c.data);
      if (bias_) {
        bias_.set_data_handle(bias.data);
      }
      if (scratchpad_) {
        scratchpad_.set_data_handle(workspace.data);
      }
      steps_.front().execute(library_.stream);
    });
  }

 private:
  int threads_;
  Library library_;  // shares the context's engine and stream
  memory a_;
  memory b_;
  memory bias_;
  memory c_;
  memory scratchpad_;
  std::vector<Step> steps_;
  WorkspaceLayout layout_;
};

std::unique_ptr<MatmulPlan> plan(Context& context, const MatmulDesc& desc, const std::string& choice) {
  require<UsageError>(choice == kMatmul.name, "matmul: choice is '", choice, "', expected '", kMatmul.name, "'");
  require<UnsupportedError>(desc.dtype == DType::f32, "matmul: onednn computes in f32, not in ", desc.dtype);
  return translate_errors("matmul", [&] { return std::make_unique<Plan>(context, desc); });
}

std::vector<std::string> choices(Context& context, const MatmulDesc& desc) {
  try {
    return {plan(context, desc, std::string(kMatmul.name))->choice()};
  } catch (const UnsupportedError&) {
    return {};
  }
}

}  // namespace

constinit const MatmulProvider kMatmul{"onednn", DeviceKind::cpu, choices, plan};

}  // namespace lockstep::ops::onednn
