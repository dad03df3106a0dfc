#include <lockstep/comm/gradients/gradient_hook.hpp>

#include <utility>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep::comm {
namespace {

class FunctionHook final : public GradientHook {
 public:
  FunctionHook(std::string name, HookFunction reduce) : name_(std::move(name)), reduce_(std::move(reduce)) {
    require<UsageError>(!name_.empty(), "gradient hook: the name is empty, expected one");
    require<UsageError>(name_.find('\n') == std::string::npos,
                        "gradient hook: the name has several lines, expected one");
    require<UsageError>(reduce_ != nullptr, "gradient hook ", name_, ": there is no function, expected one");
  }
  [[nodiscard]] std::string name() const override { return name_; }
  void reduce(Context& context, Communicator& communicator, int /*bucket*/, const TensorView& gradients) override {
    reduce_(gradients, context.stream(), communicator);
  }

 private:
  std::string name_;
  HookFunction reduce_;
};

}  // namespace

void GradientHook::prepare(Context& /*context*/, Communicator& /*communicator*/,
                           std::span<const GradientRange> /*ranges*/, std::span<const Bucket> /*buckets*/,
                           const TensorView& /*gradients*/) {}

std::int64_t GradientHook::sent_bytes(int /*bucket*/) const {
  return -1;
}

std::shared_ptr<GradientHook> make_gradient_hook(std::string name, HookFunction reduce) {
  return std::make_shared<FunctionHook>(std::move(name), std::move(reduce));
}

}  // namespace lockstep::comm
