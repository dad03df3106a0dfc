#include <lockstep/kernels/matmul.hpp>

#include <algorithm>
#include <exception>
#include <string_view>

#include <lockstep/kernels/detail/providers.hpp>
#include <lockstep/kernels/operands.hpp>

namespace lockstep::ops {
namespace {

constexpr std::size_t kWorkspaceAlignment = 64;

void check_desc(const MatmulDesc& desc) {
  require<DTypeError>(is_floating(desc.dtype), "matmul: dtype is ", desc.dtype, ", expected a floating-point type");
  require<ShapeError>(desc.m >= 1 && desc.n >= 1 && desc.k >= 1, "matmul: m ", desc.m, ", n ", desc.n, ", k ", desc.k,
                      ", expected at least 1 each");
  require<ShapeError>(desc.batch >= 0, "matmul: batch is ", desc.batch, ", expected 0 (none) or more");
  require<UsageError>(
      desc.grad_mode != GradMode::ignore,
      "matmul: grad_mode is ignore, expected overwrite or accumulate: a gradient that is not wanted needs no plan");
  require<UsageError>(!desc.bias || desc.grad_mode == GradMode::overwrite,
                      "matmul: bias together with grad_mode accumulate, expected overwrite or no bias");
  static_cast<void>(name_of(desc.activation));  // throws UsageError for a value that is no Activation
  require<UsageError>(desc.activation == Activation::identity || desc.grad_mode == GradMode::overwrite,
                      "matmul: activation ", name_of(desc.activation),
                      " together with grad_mode accumulate, expected overwrite or identity");
}

std::string_view provider_of(std::string_view choice) {
  return choice.substr(0, choice.find(':'));
}

}  // namespace

std::vector<std::string> matmul_choices(Context& context, const MatmulDesc& desc) {
  check_desc(desc);
  std::vector<std::string> all;
  for (const MatmulProvider& provider : matmul_providers()) {
    if (provider.device == context.device().kind) {
      for (std::string& choice : provider.choices(context, desc)) {
        all.push_back(std::move(choice));
      }
    }
  }
  return all;
}

bool fuses_activation(Context& context, const MatmulDesc& desc) {
  MatmulDesc alone = desc;
  alone.activation = Activation::identity;
  const std::vector<std::string> first = matmul_choices(context, alone);
  const std::vector<std::string> fused = matmul_choices(context, desc);
  if (first.empty() || fused.empty() || provider_of(first.front()) != provider_of(fused.front())) {
    return false;
  }
  const auto is_first = [&](const MatmulProvider& provider) { return provider.name == provider_of(first.front()); };
  return desc.activation != Activation::relu || std::ranges::find_if(matmul_providers(), is_first)->relu_keeps_nan;
}

std::unique_ptr<MatmulPlan> plan_matmul(Context& context, const MatmulDesc& desc, const std::string& choice) {
  check_desc(desc);
  const std::string_view name = provider_of(choice);
  std::string known;
  std::exception_ptr refusal;
  for (const MatmulProvider& provider : matmul_providers()) {
    if (provider.device != context.device().kind) {
      require<UnsupportedError>(choice.empty() || provider.name != name, "matmul: choice '", choice,
                                "' is for another kind of device than ", context.device(), ", expected one for that");
      continue;
    }
    if (choice.empty()) {
      auto made = first_planned(provider.choices(context, desc), refusal,
                                [&](const std::string& one) { return provider.plan(context, desc, one); });
      if (made != nullptr) {
        return made;
      }
    } else if (provider.name == name) {
      return provider.plan(context, desc, choice);
    }
    known += concat(known.empty() ? "" : ", ", provider.name);
  }
  if (refusal != nullptr) {
    std::rethrow_exception(refusal);
  }
  require<UsageError>(choice.empty(), "matmul: choice is '", choice, "', expected one of ", known, " on ",
                      context.device());
  throw UnsupportedError(concat("matmul: no provider for ", desc.dtype, " on ", context.device(),
                                " in this build, expected another dtype or a build with one"));
}

void matmul(Context& context, const MatmulPlan& plan, const TensorView& a, const TensorView& b, const TensorView& bias,
            const TensorView& c, const TensorView& workspace) {
  const MatmulDesc& desc = plan.desc();
  require<DeviceError>(context.device() == plan.device(), "matmul: the context is on ", context.device(), ", expected ",
                       plan.device(), ", for which the plan was made");
  require_on(context.device(), "matmul", {&a, &b, &bias, &c, &workspace});
  require_tensor("matmul", {a, "a"}, desc.dtype, desc.a_shape());
  require_tensor("matmul", {b, "b"}, desc.dtype, desc.b_shape());
  require_tensor("matmul", {c, "c"}, desc.c_dtype(), desc.c_shape());
  require<ShapeError>(bias.given() == desc.bias, "matmul: bias is ",
                      bias.given() ? "given, expected none" : "missing, expected it", ": the plan was made ",
                      desc.bias ? "with" : "without", " one");
  if (desc.bias) {
    require_tensor("matmul", {bias, "bias"}, accumulation_dtype(desc.dtype), Shape{desc.n});
  }
  if (const std::size_t bytes = plan.workspace_bytes(); bytes > 0) {
    require_workspace("matmul", workspace, bytes, kWorkspaceAlignment);
    require_apart("matmul", {workspace, "workspace"}, {{a, "a"}, {b, "b"}, {bias, "bias"}, {c, "c"}});
  }
  require_apart("matmul", {c, "c"}, {{a, "a"}, {b, "b"}, {bias, "bias"}});
  dispatch(context, "matmul",
           [&plan, a, b, bias, c, workspace](auto& concrete) -> void { plan.run(concrete, a, b, bias, c, workspace); });
}

}  // namespace lockstep::ops
