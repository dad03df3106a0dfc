#include <utility>

#include <lockstep/comm/gradients/bucket_sum.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::comm {
namespace {

class FunctionHook final : public BucketSum {
 public:
  FunctionHook(std::string name, HookFunction reduce) : name_(std::move(name)), reduce_(std::move(reduce)) {
    require<UsageError>(!name_.empty(), "gradient hook: the name is empty, expected at least one character");
    require<UsageError>(name_.find('\n') == std::string::npos,
                        "gradient hook: the name has several lines, expected one line");
    require<UsageError>(reduce_ != nullptr, "gradient hook ", name_, ": there is no function, expected one");
  }
  [[nodiscard]] std::string name() const override { return name_; }
  void reduce(SumPlace& place, int /*bucket*/, const TensorView& gradients) override {
    reduce_(gradients, place.stream, place.communicator);
  }

 private:
  std::string name_;
  HookFunction reduce_;
};

}  // namespace

std::shared_ptr<BucketSum> make_gradient_hook(std::string name, HookFunction reduce) {
  return std::make_shared<FunctionHook>(std::move(name), std::move(reduce));
}

}  // namespace lockstep::comm
