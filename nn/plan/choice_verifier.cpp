#include <lockstep/nn/plan/choice_verifier.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include <lockstep/nn/plan/detail/library_operands.hpp>
#include <lockstep/nn/plan/norm_trial.hpp>
#include <lockstep/runtime/base/align.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/text.hpp>
#include <lockstep/runtime/memory/guard_band.hpp>
#include <lockstep/runtime/tensor/buffer.hpp>
#include <lockstep/runtime/tensor/copy.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>

namespace lockstep::nn {
namespace {

/// A tensor on the context's device between two guard bands. `image_` is a copy of the tensor and both bands on the
/// host.
class Guarded {
 public:
  Guarded(Context& context, const TensorView& prototype)
      : context_(context),
        bytes_(prototype.given() ? prototype.bytes() : 0),
        buffer_(kFront + bytes_ + kGuardBandBytes, context) {
    image_.resize(buffer_.bytes());
    write_guard_band(image_.data());
    write_guard_band(image_.data() + kFront + bytes_);
    if (prototype.given()) {
      view_ = {buffer_.data() + kFront, prototype.dtype, context.device(), prototype.shape};
    }
    upload();
  }

  [[nodiscard]] const TensorView& view() const { return view_; }

  /// Copies the guard bands and `values` to the device. `values` is a bf16 tensor with as many elements as this tensor.
  void assign(CpuContext& host, const Tensor& values) {
    if (view_.given()) {
      copy(host, values.view().reshape(view_.shape), on_host());
      host.synchronize();
    }
    upload();
  }
  /// Sets every byte of the tensor to 0xff, so that its elements are NaN in floating types.
  void poison() {
    std::memset(image_.data() + kFront, 0xff, bytes_);
    upload();
  }
  /// Copies the tensor and its guard bands to the host. Returns a text that describes damaged guard bytes, or an empty
  /// text if no guard byte has changed.
  [[nodiscard]] std::string fetch() {
    copy_now(context_, all(buffer_.data(), context_.device()), all(image_.data(), Device::cpu()));
    return damage_of_guard_band(image_.data()).empty() ? damage_of_guard_band(image_.data() + kFront + bytes_)
                                                       : "wrote over bytes before the begin";
  }
  [[nodiscard]] std::vector<double> values(CpuContext& host) {
    std::vector<double> all(static_cast<std::size_t>(view_.numel()));
    copy_now(host, on_host(), TensorView(std::span(all), view_.shape));
    return all;
  }

 private:
  static constexpr std::size_t kFront = align_up(kGuardBandBytes, kAlignment);
  void upload() { copy_now(context_, all(image_.data(), Device::cpu()), all(buffer_.data(), context_.device())); }
  [[nodiscard]] TensorView all(std::byte* data, Device device) const {
    return {data, DType::u8, device, Shape{static_cast<std::int64_t>(image_.size())}};
  }
  [[nodiscard]] TensorView on_host() { return {image_.data() + kFront, view_.dtype, Device::cpu(), view_.shape}; }

  Context& context_;
  std::size_t bytes_;
  Buffer buffer_;
  std::vector<std::byte> image_;
  TensorView view_;
};

/// Operands of a call, on the host. The operands are bf16 numbers, so that a call in any floating type gets the same
/// numbers.
struct Numbers {
  Tensor a, b, bias, out;
};

Numbers random_numbers(CpuContext& host, const LibraryOperands& o) {
  const auto drawn = [&](const TensorView& view, std::uint64_t sequence) {
    constexpr std::uint64_t kSeed = 20261126;
    return view.given() ? Tensor::randn(host, view.shape, DType::bf16, kSeed, sequence) : Tensor();
  };
  Numbers all{drawn(o.a, 1), drawn(o.b, 2), drawn(o.bias, 3), drawn(o.out, 4)};
  host.synchronize();
  return all;
}

Numbers absolute(CpuContext& host, const Numbers& of) {
  const auto without_sign = [&](const Tensor& tensor) {
    if (!tensor.view().given()) {
      return Tensor();
    }
    Tensor result = Tensor::empty_like(host, tensor);
    const auto* const from = static_cast<const std::uint16_t*>(tensor.view().data);
    std::transform(from, from + tensor.view().numel(), static_cast<std::uint16_t*>(result.view().data),
                   [](std::uint16_t bits) { return static_cast<std::uint16_t>(bits & 0x7fffU); });
    return result;
  };
  return {without_sign(of.a), without_sign(of.b), without_sign(of.bias), without_sign(of.out)};
}

ops::GradMode grad_mode(const ops::ConvPlan& plan) {
  return plan.pass() == ops::ConvPass::forward ? ops::GradMode::overwrite : plan.desc().grad_mode;
}
ops::GradMode grad_mode(const ops::MatmulPlan& plan) {
  return plan.desc().grad_mode;
}

/// Returns the number of products that are summed for one element of the output.
double terms(const ops::ConvPlan& plan, const TensorView& out) {
  return plan.desc().flops() / 2 / static_cast<double>(out.numel());
}
double terms(const ops::MatmulPlan& plan, const TensorView& /*out*/) {
  return static_cast<double>(plan.desc().k);
}

/// Makes a plan with the pass of `plan` and the sizes of `desc`. `desc` describes `plan` itself or a smaller call.
std::unique_ptr<ops::ConvPlan> plan_like(Context& context, const ops::ConvPlan& plan, const ops::ConvDesc& desc,
                                         const std::string& choice) {
  return ops::plan_conv2d(context, desc, plan.pass(), choice);
}
std::unique_ptr<ops::MatmulPlan> plan_like(Context& context, const ops::MatmulPlan& /*plan*/,
                                           const ops::MatmulDesc& desc, const std::string& choice) {
  return ops::plan_matmul(context, desc, choice);
}

/// Returns the descriptions of smaller calls than `desc`, smallest first. To save time, the verifier may check one of
/// these calls instead of the call of `desc`.
std::vector<ops::ConvDesc> smaller(ops::ConvDesc desc) {
  const std::int64_t batch = std::exchange(desc.batch, 1);
  std::vector<ops::ConvDesc> all;
  for (; desc.batch < batch; desc.batch *= 2) {
    all.push_back(desc);
  }
  return all;
}
std::vector<ops::MatmulDesc> smaller(const ops::MatmulDesc& desc) {
  // A shortened extent keeps its remainder modulo 64, because a library may choose its implementation by the remainder.
  constexpr std::int64_t kLong = 64;
  const auto shortened = [](std::int64_t extent) { return extent < 2 * kLong ? extent : kLong + extent % kLong; };
  ops::MatmulDesc small = desc;
  small.batch = std::min<std::int64_t>(desc.batch, 3);
  small.m = shortened(desc.m);
  small.k = shortened(desc.k);
  return small == desc ? std::vector<ops::MatmulDesc>{} : std::vector{small};
}

template <class Plan>
std::shared_ptr<const Plan> smallest_alike(Context& context, const std::shared_ptr<const Plan>& plan) {
  for (const auto& desc : smaller(plan->desc())) {
    try {
      std::shared_ptr<const Plan> small = plan_like(context, *plan, desc, plan->choice());
      if (small->implementation() == plan->implementation()) {
        return small;
      }
    } catch (const UnsupportedError&) {  // the choice does not support this size
    }
  }
  return plan;
}

struct Outcome {
  std::string damage;
  std::vector<double> out;
};

template <class Plan>
Outcome run(Context& context, CpuContext& host, const Plan& plan, const Numbers& numbers) {
  const LibraryOperands o = operands_of(call_of(plan), context.device());
  const auto bytes = static_cast<std::int64_t>(plan.workspace_bytes());
  Guarded a(context, o.a);
  Guarded b(context, o.b);
  Guarded bias(context, o.bias);
  Guarded out(context, o.out);
  Guarded workspace(context,
                    bytes == 0 ? TensorView() : TensorView(nullptr, DType::u8, context.device(), Shape{bytes}));
  a.assign(host, numbers.a);
  b.assign(host, numbers.b);
  bias.assign(host, numbers.bias);
  workspace.poison();
  if (grad_mode(plan) == ops::GradMode::accumulate) {
    out.assign(host, numbers.out);
  } else {
    out.poison();
  }
  enqueue(context, plan, {a.view(), b.view(), bias.view(), out.view()}, workspace.view());
  context.synchronize();
  Outcome outcome;
  for (const auto& [tensor, name] : {std::pair<Guarded*, const char*>(&a, "its first operand"),
                                     {&b, "its second operand"},
                                     {&bias, "its bias"},
                                     {&workspace, "its workspace"},
                                     {&out, "its output"}}) {
    if (const std::string damage = tensor->fetch(); !damage.empty()) {
      outcome.damage = concat(damage, " of ", name);
    }
  }
  outcome.out = out.values(host);
  return outcome;
}

/// Runs a library's plan and our own kernel on the same random numbers. Returns a text on the first difference, or an
/// empty text if there is none.
template <class Plan>
std::string difference(Context& context, const Plan& plan) {
  CpuContext host;
  const LibraryOperands o = operands_of(call_of(plan), context.device());
  const Numbers numbers = random_numbers(host, o);
  auto desc = plan.desc();
  const char* const own = own_kernels(context.device());
  const Outcome expected = run(context, host, *plan_like(context, plan, desc, own), numbers);
  double slack = 0;
  if constexpr (requires { desc.activation; }) {
    // The tolerance grows, because a library may compute tanh and erf differently.
    slack = desc.activation == ops::Activation::identity ? 0 : 1e-5;
    desc.activation = ops::Activation::identity;
  }
  const Outcome magnitude = run(context, host, *plan_like(context, plan, desc, own), absolute(host, numbers));
  const Outcome got = run(context, host, plan, numbers);
  if (!got.damage.empty()) {
    return got.damage;
  }
  const bool adds = grad_mode(plan) == ops::GradMode::accumulate;
  const bool rounds_factors = plan.desc().tf32;
  const bool rounds_sums = context.device().kind == DeviceKind::cuda && size_of(plan.desc().dtype) == 2;
  const double of_sum = 4 * (terms(plan, o.out) + 4) * std::ldexp(1.0, -24) +
                        (rounds_factors ? std::ldexp(1.0, -9) : 0) + (rounds_sums ? std::ldexp(1.0, -8) : 0);
  const DType stored = o.out.dtype;
  const double last_place = std::ldexp(1.0, stored == DType::bf16 ? -7 : stored == DType::f16 ? -10 : -23);
  for (std::size_t i = 0; i < got.out.size(); ++i) {
    const double size = std::max(std::abs(expected.out[i]), adds ? magnitude.out[i] : 0);
    const double most = of_sum * magnitude.out[i] + 2 * last_place * size + slack;
    if (!(std::abs(got.out[i] - expected.out[i]) <= most)) {
      return concat("element ", i, " is ", got.out[i], ", expected ", expected.out[i], " within ", most);
    }
  }
  return {};
}

/// Compares a convolution's plan that also computes sums for a batch norm with our own kernel and norm (NormTrial).
/// Returns a text on the first difference, or an empty text if there is none.
std::string difference_beside_norm(Context& context, const ops::ConvPlan& plan) {
  const LibraryOperands o = operands_of(call_of(plan), context.device());
  const auto memory = [&](const TensorView& view, std::uint64_t seed) {
    return small_random_numbers(context, static_cast<std::int64_t>((view.bytes() + 1) / 2), seed);
  };
  const Tensor a = memory(o.a, 1);
  const Tensor b = memory(o.b, 2);
  const Tensor out = memory(o.out, 3);
  NormTrial trial(context, plan.desc(), plan.pass());
  const auto compare = [&](const ops::ConvPlan& one) {
    const auto bytes = static_cast<std::int64_t>(one.workspace_bytes());
    const Tensor workspace = Tensor::zeros(context, Shape{std::max<std::int64_t>(bytes, 1)}, DType::u8);
    const auto at = [&](const Tensor& tensor, const TensorView& view) {
      return TensorView(tensor.view().data, view.dtype, context.device(), view.shape);
    };
    trial.check(one, {at(a, o.a), at(b, o.b), at(out, o.out), bytes == 0 ? TensorView() : workspace.view()});
    context.synchronize();
  };
  compare(*plan_like(context, plan, plan.desc(), own_kernels(context.device())));
  try {
    compare(plan);
  } catch (const UnsupportedError& error) {
    return error.what();
  }
  return {};
}

/// Checks a plan with the context's threads, and on the host also with one thread. Returns a text on the first error,
/// or an empty text if there is none.
template <class Plan>
std::string wrong_with(Context& context, const std::shared_ptr<const Plan>& plan) {
  const std::shared_ptr<const Plan> small = smallest_alike(context, plan);
  if constexpr (requires { small->serves_norm(); }) {
    if (small->serves_norm()) {
      return difference_beside_norm(context, *small);
    }
  }
  if (std::string wrong = difference(context, *small); !wrong.empty()) {
    return wrong;
  }
  if (const auto* host = dynamic_cast<const CpuContext*>(&context); host != nullptr && host->threads() > 1) {
    CpuContext one({.threads = 1});
    try {
      const std::string wrong = difference(one, *plan_like(one, *small, small->desc(), small->choice()));
      return wrong.empty() ? wrong : concat("with one thread: ", wrong);
    } catch (const UnsupportedError&) {  // the choice does not support one thread
    }
  }
  return {};
}

}  // namespace

template <class Plan>
std::shared_ptr<const Plan> ChoiceVerifier::first_right(Context& context, std::shared_ptr<const Plan> plan) {
  if (is_own(plan->choice(), context.device())) {
    return plan;
  }
  const std::string call = describe(call_of(*plan));
  const auto begin = std::chrono::steady_clock::now();
  const auto* const host = dynamic_cast<const CpuContext*>(&context);
  const std::string threads = host == nullptr ? std::string() : concat(", ", host->threads(), " threads");
  const auto right = [&](const std::shared_ptr<const Plan>& one) {
    if (is_own(one->choice(), context.device())) {
      return true;
    }
    const std::string what = concat(call, ": ", one->choice(), " (", one->implementation(), threads, ')');
    const auto [found, is_new] = wrong_.try_emplace(what);
    if (is_new) {
      found->second = wrong_with(context, one);
      if (!found->second.empty()) {
        refused_.push_back(concat(what, ": ", found->second));
        if (tell_) {
          tell_(refused_.back());
        }
      }
    }
    return found->second.empty();
  };
  const std::shared_ptr<const Plan> given = plan;
  if (!right(plan)) {
    plan = nullptr;
    for (const std::string& choice : choices_of(context, call_of(*given))) {
      if (choice == given->choice() || choice.find(":norm") != std::string::npos) {
        continue;
      }
      std::shared_ptr<const Plan> other = plan_like(context, *given, given->desc(), choice);
      if ((other->deterministic() || !given->deterministic()) && right(other)) {
        plan = std::move(other);
        break;
      }
    }
  }
  seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  require<UsageError>(plan != nullptr, "choices: no library computes ", call, " on ", context.device(),
                      " with the results of our own kernel, expected at least one: ",
                      refused_.empty() ? std::string() : refused_.back());
  return plan;
}

std::shared_ptr<const ops::ConvPlan> ChoiceVerifier::checked(Context& context,
                                                             std::shared_ptr<const ops::ConvPlan> plan) {
  return first_right(context, std::move(plan));
}

std::shared_ptr<const ops::MatmulPlan> ChoiceVerifier::checked(Context& context,
                                                               std::shared_ptr<const ops::MatmulPlan> plan) {
  return first_right(context, std::move(plan));
}

std::shared_ptr<ChoiceVerifier> ChoiceVerifier::from_environment() {
  const char* const value = std::getenv("LOCKSTEP_VERIFY");
  const std::string_view text = value == nullptr ? "" : value;
  require<UsageError>(text.empty() || text == "0" || text == "1", "LOCKSTEP_VERIFY is ", printable(text),
                      ", expected 0 or 1");
  if (text != "1") {
    return nullptr;
  }
  return std::make_shared<ChoiceVerifier>([](const std::string& refused) {
    std::fprintf(stderr, "lockstep: LOCKSTEP_VERIFY: refused %s\n", refused.c_str());
  });
}

}  // namespace lockstep::nn
