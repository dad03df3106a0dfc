#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <lockstep/kernels/activation.hpp>
#include <lockstep/kernels/add.hpp>
#include <lockstep/kernels/cudnn/plan_cache.hpp>
#include <lockstep/kernels/detail/providers.hpp>
#include <lockstep/kernels/linear_epilogue.hpp>
#include <lockstep/kernels/strided_copy.hpp>
#include <lockstep/runtime/base/align.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/cuda/device_guard.hpp>

// The choices of this provider. "cudnn:eng35:k2=1,k13=0" does the whole pass in one graph. With "cudnn:split:eng35:.."
// cuDNN does only the convolution. Our kernels then add the bias, add to the gradient, or store a 16-bit gradient of
// the weights as f32. Some passes need this choice, because cuDNN has no engine for the whole pass: for example a
// 16-bit convolution that adds to an f32 gradient. "cudnn:norm:eng7" also does the work of ConvDesc::norm, in the same
// graph.

namespace lockstep::ops::cudnn {
namespace {

constexpr std::uintptr_t kOperandAlignment = 16;  // alignment in bytes that the graph states for operands
constexpr std::size_t kAlignment = 256;           // alignment in bytes of cudaMalloc, which engines expect
constexpr std::size_t kContractAlignment = 64;    // alignment in bytes that callers guarantee for each workspace

std::string choice_of(const Algorithm& algorithm) {
  return concat(kConv.name, ':', algorithm.text());
}

Algorithm parse(const std::string& choice) {
  const std::size_t prefix = std::min(choice.size(), kConv.name.size() + 1);
  const std::optional<Algorithm> algorithm = Algorithm::parse(std::string_view(choice).substr(prefix));
  require<UsageError>(
      algorithm.has_value(), "conv2d: choice is '", choice,
      "', expected 'cudnn', 'cudnn:eng35:k2=1,k13=0', 'cudnn:split:eng35:k2=1,k13=0' or 'cudnn:norm:eng7'");
  return *algorithm;
}

class Plan final : public ConvPlan {
 public:
  Plan(Context& context, const ConvDesc& desc, ConvPass pass, Algorithm algorithm)
      : ConvPlan(context.device(), desc, pass),
        algorithm_(std::move(algorithm)),
        execution_(library(context).plans().plan(library(context).targets(1).front(), desc, pass, algorithm_)) {
    std::size_t bytes = align_up(execution_->workspace_bytes(), kAlignment);
    const auto buffer = [&](DType dtype, const Shape& shape) {
      const std::size_t offset = bytes;
      bytes += align_up(static_cast<std::size_t>(shape.numel()) * size_of(dtype), kAlignment);
      return offset;
    };
    if (algorithm_.form == Form::split && pass != ConvPass::forward) {
      const Shape shape = pass == ConvPass::backward_data ? desc.x_shape() : desc.weights_shape();
      result_offset_ = buffer(desc.dtype, shape);
      if (converts() && desc.grad_mode == GradMode::accumulate) {
        converted_offset_ = buffer(accumulation_dtype(desc.dtype), shape);
      }
    }
    workspace_bytes_ = bytes == 0 ? 0 : bytes + kAlignment - kContractAlignment;
  }

  std::size_t workspace_bytes() const override { return workspace_bytes_; }
  bool deterministic() const override { return execution_->deterministic(); }
  bool serves_norm() const override { return algorithm_.form == Form::norm; }
  std::string choice() const override { return choice_of(algorithm_); }

  void run(Context& context, const TensorView& a, const TensorView& b, const TensorView& bias, const TensorView& out,
           const TensorView& workspace) const override {
    std::byte* const base = aligned(workspace);
    const bool split = algorithm_.form == Form::split;
    TensorView result = out;
    if (split && pass() != ConvPass::forward) {
      result = TensorView(base + result_offset_, desc().dtype, device(), out.shape);
    }
    Pointers pointers{.workspace = base};
    pointers.at(Uid::a) = a.data;
    pointers.at(Uid::b) = b.data;
    pointers.at(Uid::out) = result.data;
    pointers.at(Uid::bias) = bias.given() && !split ? bias.data : nullptr;
    execute(context, pointers);
    if (split) {
      finish(static_cast<CudaContext&>(context), bias, result, out, base);
    }
  }

  void run_for_norm(Context& context, const TensorView& a, const TensorView& b, const TensorView& out,
                    const TensorView& workspace, const ConvNormOperands& norm) const override {
    const auto row = [](const TensorView& view, std::int64_t index) -> void* {
      return view.given() ? view.as<float>() + index * view.shape[1] : nullptr;
    };
    Pointers pointers{.workspace = aligned(workspace)};
    pointers.at(Uid::a) = a.data;
    pointers.at(Uid::b) = b.data;
    pointers.at(Uid::out) = out.data;
    pointers.at(Uid::shift) = norm.shift.data;
    pointers.at(Uid::sums) = row(norm.sums, 0);
    pointers.at(Uid::squares) = row(norm.sums, 1);
    pointers.at(Uid::sums2) = desc().norm.pair ? row(norm.sums, 2) : nullptr;
    pointers.at(Uid::addend) = norm.addend.data;
    pointers.at(Uid::mask) = norm.mask.data;
    pointers.at(Uid::x) = norm.x.data;
    pointers.at(Uid::mean) = row(norm.coefficients, 2);
    pointers.at(Uid::inv_std) = row(norm.coefficients, 3);
    pointers.at(Uid::x2) = norm.x2.data;
    pointers.at(Uid::mean2) = row(norm.coefficients2, 2);
    pointers.at(Uid::inv_std2) = row(norm.coefficients2, 3);
    execute(context, pointers);
  }

 private:
  /// Returns true if the convolution's output `out` and the tensor that the cuDNN graph writes have different types.
  bool converts() const {
    return pass() == ConvPass::backward_weights && accumulation_dtype(desc().dtype) != desc().dtype;
  }

  /// Enqueues the steps of the pass that Form::split leaves to lockstep's kernels.
  void finish(CudaContext& context, const TensorView& bias, const TensorView& result, const TensorView& out,
              std::byte* base) const {
    if (pass() == ConvPass::forward) {
      backend::linear_epilogue_forward(context, Activation::identity, out, bias, TensorView(), out);
      return;
    }
    if (!converts()) {
      backend::add(context, out, result, out);
      return;
    }
    if (desc().grad_mode != GradMode::accumulate) {
      backend::strided_copy(context, result, out);
      return;
    }
    const TensorView converted(base + converted_offset_, out.dtype, device(), out.shape);
    backend::strided_copy(context, result, converted);
    backend::add(context, out, converted, out);
  }

  std::byte* aligned(const TensorView& workspace) const {
    return workspace_bytes_ == 0
               ? nullptr
               : reinterpret_cast<std::byte*>(align_up(reinterpret_cast<std::uintptr_t>(workspace.data), kAlignment));
  }

  /// The addresses of the graph's tensors: of[uid] is null if the graph has no tensor with this Uid.
  struct Pointers {
    std::array<void*, Uid::count> of{};
    void* workspace = nullptr;
    void*& at(std::int64_t uid) { return of.at(static_cast<std::size_t>(uid)); }
    bool operator==(const Pointers&) const = default;
  };

  /// Runs the graph on the addresses `pointers`. A variant pack holds the addresses of one run and cannot change once
  /// finalised. The last pack is kept, because training steps use the same addresses, so most steps make no new pack.
  void execute(Context& context, const Pointers& pointers) const {
    const cuda::DeviceGuard guard(device());
    if (!pack_ || bound_ != pointers) {
      pack_.reset();
      pack_.emplace(bind(pointers));
      bound_ = pointers;
    }
    LOCKSTEP_CUDNN_CHECK(api().execute(library(context).handle(), execution_->descriptor().get(), pack_->get()));
  }

  static Descriptor bind(const Pointers& pointers) {
    std::array<void*, Uid::count> data{};
    std::array<std::int64_t, Uid::count> uids{};
    std::size_t count = 0;
    for (std::size_t uid = 0; uid < pointers.of.size(); ++uid) {
      void* const address = pointers.of.at(uid);
      require<ShapeError>(reinterpret_cast<std::uintptr_t>(address) % kOperandAlignment == 0,
                          "conv2d: cudnn: operand is at address ", address, ", expected an address aligned to ",
                          kOperandAlignment);
      if (address != nullptr) {
        data.at(count) = address;
        uids.at(count++) = static_cast<std::int64_t>(uid);
      }
    }
    const auto values = static_cast<std::int64_t>(count);
    Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, values, uids.data());
    pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, values, data.data());
    pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, pointers.workspace);
    pack.finalize();
    return pack;
  }

  Algorithm algorithm_;
  std::shared_ptr<const Execution> execution_;
  std::size_t workspace_bytes_ = 0;
  std::size_t result_offset_ = 0, converted_offset_ = 0;
  mutable Pointers bound_;
  mutable std::optional<Descriptor> pack_;
};

std::vector<std::string> choices(Context& context, const ConvDesc& desc, ConvPass pass, const ConvListing& listing) {
  std::vector<std::string> all;
  try {
    const cuda::DeviceGuard guard(context.device());
    Library& lib = library(context);
    const PlanCache::Listed& listed = lib.plans().list(lib.targets(1).front(), desc, pass, listing.engines);
    for (const Algorithm& algorithm : listed.algorithms) {
      all.push_back(choice_of(algorithm));
    }
    if (listing.refused != nullptr) {
      listing.refused->insert(listing.refused->end(), listed.refused.begin(), listed.refused.end());
    }
  } catch (const UnsupportedError&) {
    all.clear();  // libcudnn cannot be used, or does not support this pass
  }
  return all;
}

void prepare(Context& context, std::span<const ConvCall> calls, Engines engines, int threads) {
  Library& lib = library(context);
  if (!lib.usable()) {
    return;
  }
  std::vector<PlanCache::Wanted> wanted;
  for (const ConvCall& call : calls) {
    const std::string_view choice = call.choice;
    std::optional<Algorithm> algorithm;
    if (choice.starts_with(kConv.name) && choice.size() > kConv.name.size()) {
      algorithm = Algorithm::parse(choice.substr(kConv.name.size() + 1));
    }
    if (choice.empty() || algorithm) {
      wanted.push_back({call.desc, call.pass, std::move(algorithm)});
    }
  }
  lib.plans().prepare(lib.targets(threads), wanted, engines);
}

std::unique_ptr<ConvPlan> plan(Context& context, const ConvDesc& desc, ConvPass pass, const std::string& choice) {
  if (choice != kConv.name) {
    Algorithm algorithm = parse(choice);
    try {
      const cuda::DeviceGuard guard(context.device());
      return std::make_unique<Plan>(context, desc, pass, std::move(algorithm));
    } catch (Error& error) {
      error.annotate(concat("conv2d: choice '", choice, "'"));
      throw;
    }
  }
  (void)library(context).handle();          // throws with the reason if there is no handle
  (void)describe(desc, pass, Form::split);  // throws if cuDNN does not support this pass at all
  const std::vector<std::string> all = choices(context, desc, pass, {});
  require<UnsupportedError>(!all.empty(), "conv2d: cudnn has no engine for this convolution on ", context.device(),
                            ", expected another library for it");
  std::exception_ptr refusal;
  auto made = first_planned(all, refusal, [&](const std::string& one) { return plan(context, desc, pass, one); });
  if (made == nullptr) {
    std::rethrow_exception(refusal);
  }
  return made;
}

/// Returns the version of cuDNN, or "none" if cuDNN cannot be used.
std::string library_version() {
  return unusable().empty() ? version_text(api().get_version()) : "none";
}

}  // namespace

constinit const ConvProvider kConv{"cudnn", DeviceKind::cuda, choices, plan, library_version, prepare};

}  // namespace lockstep::ops::cudnn
