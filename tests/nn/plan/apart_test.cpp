// Tests that forward and backward, called separately with two sets of kept activations, give the same bits as runs of
// the whole plan.

#include <lockstep/nn/models/resnet.hpp>
#include <lockstep/runtime/base/error.hpp>

#include "tests/nn/net.hpp"
#include "tests/support/error_of.hpp"

namespace lockstep::nn {
namespace {

constexpr std::int64_t kBatch = 3;

using testing::Net, testing::to_doubles;

/// A Net with a second state and a second memory for activations. The two states have different inputs.
class Apart : public ::testing::TestWithParam<Recompute> {
 protected:
  Apart()
      : net_(cifar_resnet(20), Mode::train, kBatch, DType::f32, 1, options()),
        other_(net_.context(), kBatch, net_.plan().layout()),
        more_(net_.workspace_bytes(), net_.context()) {
    net_.fill_input(11);
    copy_state();
    net_.fill_input(7);
  }
  static PlanOptions options() { return {.recompute = GetParam()}; }
  /// Copies the fields of the net's state to the second state.
  void copy_state() {
    for (const StateField field : {StateField::values, StateField::labels, StateField::sample_ids}) {
      testing::from_doubles(to_doubles(net_.state().view(field)), other_.view(field));
    }
  }
  [[nodiscard]] std::vector<double> gradients() { return to_doubles(net_.parameters().gradients()); }
  void set_scalars() {
    net_.state().set(net_.context(), net_.scalars());
    other_.set(net_.context(), net_.scalars());
  }
  /// Returns the gradients of one run of the whole plan on `state`.
  std::vector<double> whole(const StepState& state) {
    net_.plan().use(state);
    net_.plan().run(net_.context());
    return gradients();
  }
  Net net_;
  StepState other_;
  Buffer more_;
};

TEST_P(Apart, TwoSetsOfActivationsDoNotMeet) {
  set_scalars();
  Plan& plan = net_.plan();
  const std::vector<double> first = whole(net_.state());
  const std::vector<double> second = whole(other_);
  ASSERT_NE(first, second);
  ASSERT_GT(plan.recomputed().calls, GetParam() == Recompute::off ? -1 : 0);

  ASSERT_EQ(
      plan.add_kept(TensorView(more_.data(), DType::u8, Device::cpu(), {static_cast<std::int64_t>(more_.bytes())})), 1);
  plan.keep_in(0);
  plan.use(net_.state());
  plan.forward(net_.context());
  plan.keep_in(1);
  plan.use(other_);
  plan.forward(net_.context());
  std::vector<int> written;
  plan.keep_in(0);
  plan.backward(net_.context(), [&](int parameter) { written.push_back(parameter); });
  EXPECT_EQ(gradients(), first);
  EXPECT_EQ(written.size(), net_.parameters().trainable().size());
  plan.keep_in(1);
  plan.backward(net_.context());
  EXPECT_EQ(gradients(), second);

  // The control: with one set of activations, the second forward overwrites the activations that the first forward
  // kept.
  plan.keep_in(0);
  plan.use(net_.state());
  plan.forward(net_.context());
  plan.use(other_);
  plan.forward(net_.context());
  plan.use(net_.state());
  plan.backward(net_.context());
  EXPECT_NE(gradients(), first);
}

TEST_P(Apart, RefusesWhatIsNoSet) {
  Plan& plan = net_.plan();
  EXPECT_EQ(testing::error_of<UsageError>([&] { plan.keep_in(1); }),
            "plan: the set of kept activations is 1, expected 0 to 0");
  EXPECT_THROW((void)plan.add_kept(TensorView(more_.data(), DType::u8, Device::cpu(),
                                              {static_cast<std::int64_t>(net_.plan().workspace_bytes()) - 1})),
               ShapeError);
  Plan unbound(net_.context(), cifar_resnet(20).reading(InputKind::values), Mode::train, kBatch);
  EXPECT_THROW((void)unbound.add_kept(TensorView()), StateError);
  EXPECT_THROW(unbound.forward(net_.context()), StateError);
}

INSTANTIATE_TEST_SUITE_P(Recompute, Apart, ::testing::Values(Recompute::off, Recompute::blocks));

}  // namespace
}  // namespace lockstep::nn
