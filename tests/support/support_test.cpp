#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <lockstep/runtime/context/parallel.hpp>

#include "tests/support/gradient_check.hpp"
#include "tests/support/op_checks.hpp"

// Tests of the checks themselves: a check must fail when its condition fails.

namespace lockstep::testing {
namespace {

TEST(Compare, ErrorOnNorms) {
  GuardedTensor ref(Shape{2}, DType::f64);
  GuardedTensor out(Shape{2}, DType::f32);
  ref.assign({3, 4});
  out.assign({3, 4.5});
  EXPECT_DOUBLE_EQ(relative_error(out, ref), 0.1);
  EXPECT_TRUE(is_close(out, ref, 0.11));
  EXPECT_FALSE(is_close(out, ref, 0.09));
  ref.assign({0, 0});
  EXPECT_DOUBLE_EQ(relative_error(out, ref), std::sqrt(9 + 4.5 * 4.5));
  EXPECT_THROW(static_cast<void>(relative_error(out, ref.view().reshape(Shape{1, 2}))), ShapeError);
  EXPECT_FALSE(is_close(out, ref.view().reshape(Shape{1, 2}), 1e9));
}

TEST(Compare, NanAndInfinityFail) {
  const double inf = std::numeric_limits<double>::infinity();
  GuardedTensor ref(Shape{2}, DType::f64);
  GuardedTensor out(Shape{2}, DType::f64);
  const auto error = [&](double a, double b) {
    out.assign({1, a});
    ref.assign({1, b});
    return relative_error(out, ref);
  };
  EXPECT_EQ(error(std::nan(""), 1), inf);
  EXPECT_EQ(error(1, std::nan("")), inf);
  EXPECT_EQ(error(std::nan(""), std::nan("")), inf);
  EXPECT_EQ(error(inf, 1), inf);
  EXPECT_EQ(error(1, inf), inf);
  EXPECT_EQ(error(-inf, inf), inf);
  EXPECT_EQ(error(inf, inf), 0);
  static_cast<void>(error(std::nan(""), std::nan("")));
  EXPECT_FALSE(is_close(out, ref, 1e300));
  EXPECT_NONFATAL_FAILURE(expect_close(out, ref, 1), "relative error inf");
}

TEST(Compare, Bits) {
  GuardedTensor a(Shape{3}, DType::f32);
  GuardedTensor b(Shape{3}, DType::f32);
  EXPECT_TRUE(has_same_bits(a, b));  // both tensors hold the same NaN
  a.constant(0);
  b.assign({0, -0.0, 0});
  EXPECT_FALSE(has_same_bits(a, b));
  EXPECT_FALSE(has_same_bits(a, GuardedTensor(Shape{3}, DType::i32).constant(0)));
  EXPECT_NONFATAL_FAILURE(expect_same_bits(a, b, "what"), "element 1");
}

TEST(Guarded, StartsPoisoned) {
  for (const double x : GuardedTensor(Shape{5}, DType::bf16).values()) {
    EXPECT_TRUE(std::isnan(x));
  }
  EXPECT_EQ(GuardedTensor(Shape{1}, DType::i32).values()[0], -1);
  EXPECT_EQ(GuardedTensor(Shape{0}, DType::f32).check(), "");
}

TEST(Guarded, NoticesEveryGuardByte) {
  for (const std::size_t elements : {0, 1, 7}) {
    GuardedTensor t(Shape{static_cast<std::int64_t>(elements)}, DType::u8);
    EXPECT_EQ(t.check(), "");
    for (std::size_t i = 0; i < t.image().size(); ++i) {
      const bool guard = i < GuardedTensor::kGuardBytes || i >= GuardedTensor::kGuardBytes + elements;
      const std::byte kept = t.image()[i];
      t.image()[i] ^= std::byte{1};
      EXPECT_EQ(t.check().empty(), !guard) << i;
      t.image()[i] = kept;
    }
  }
}

TEST(Guarded, Fills) {
  GuardedTensor t(Shape{1000}, DType::f64);
  for (const double x : t.integers(1, -2, 3).values()) {
    EXPECT_TRUE(x >= -2 && x <= 3 && x == std::floor(x));
  }
  for (const double x : t.uniform(1, 2, 5).values()) {
    EXPECT_TRUE(x >= 2 && x < 5);
  }
  const auto first = t.normal(1).values();
  EXPECT_EQ(t.normal(1).values(), first);
  EXPECT_NE(t.normal(2).values(), first);
  EXPECT_EQ(t.constant(2.5).values(), std::vector<double>(1000, 2.5));
  EXPECT_THROW(t.assign({1}), ShapeError);
}

/// The function sum(x^3 + 2 x y) and its gradients.
struct Cubic {
  explicit Cubic(std::int64_t n)
      : x(Shape{n}, DType::f64), y(Shape{n}, DType::f64), dx(Shape{n}, DType::f64), dy(Shape{n}, DType::f64) {
    x.normal(1);
    y.normal(2);
    for (std::size_t i = 0; i < x.span<double>().size(); ++i) {
      dx.span<double>()[i] = 3 * x.span<double>()[i] * x.span<double>()[i] + 2 * y.span<double>()[i];
      dy.span<double>()[i] = 2 * x.span<double>()[i];
    }
  }
  [[nodiscard]] double error() const {
    const auto f = [&] {
      double sum = 0;
      for (std::size_t i = 0; i < x.span<double>().size(); ++i) {
        const double v = x.span<double>()[i];
        sum += v * v * v + 2 * v * y.span<double>()[i];
      }
      return sum;
    };
    const GradientPair pairs[] = {{"x", x, dx}, {"y", y, dy}};
    return gradient_error(f, pairs);
  }
  GuardedTensor x, y, dx, dy;
};

TEST(GradientCheck, TakesRightAndRefusesWrongGradients) {
  for (const std::int64_t n : {1, 31, 1000}) {
    Cubic cubic(n);
    const auto before = cubic.x.values();
    EXPECT_LE(cubic.error(), 1e-7) << n;
    EXPECT_EQ(cubic.x.values(), before) << "the values were not restored";
    for (double& v : cubic.dy.span<double>()) {
      v *= 1.01;
    }
    EXPECT_GT(cubic.error(), 5e-3);
    cubic.dy.poison();
    EXPECT_EQ(cubic.error(), std::numeric_limits<double>::infinity());
  }
}

/// The fault that the test plants in an op, which computes out = 2 a.
enum class Fault { none, past_the_end, input, workspace, threads };

OpCase doubling(Fault fault, DType dtype = DType::f32) {
  OpCase item;
  item.name = "doubling";
  item.dtype = dtype;
  item.inputs = {{"a", Shape{1001}, dtype, normal(1)}};
  item.outputs = {{"out", Shape{1001}, dtype, {}}};
  item.workspace_bytes = [](Context&) { return std::size_t{64}; };
  item.run = [=](Context& context, Views in, Views out, const TensorView& workspace) {
    visit_compute(dtype, "doubling", [&](auto type) {
      using T = typename decltype(type)::type;
      const auto a = in[0].span<T>();
      const auto b = out[0].span<T>();
      parallel_ranges(static_cast<CpuContext&>(context), 1001, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          const T factor = fault == Fault::threads && i == begin ? T{3} : T{2};
          b[static_cast<std::size_t>(i)] = factor * a[static_cast<std::size_t>(i)];
        }
      });
      if (fault == Fault::past_the_end) {
        b.data()[1001] = 0;
      } else if (fault == Fault::input) {
        a[5] = 0;
      } else if (fault == Fault::workspace) {
        static_cast<std::byte*>(workspace.data)[64] = std::byte{0};
      }
    });
  };
  item.tolerance = 1e-6;
  return item;
}

void doubling_oracle(std::span<const GuardedTensor> inputs, std::span<GuardedTensor> expected) {
  auto values = inputs[0].values();
  for (double& v : values) {
    v *= 2;
  }
  expected[0].assign(values);
}

TEST(OpCase, NoticesWhatAnOpMayNotDo) {
  CpuContext context({.threads = 2});
  const auto failure = [&](Fault fault) {
    OpInstance instance(doubling(fault), context);
    instance.run();
    return instance.check();
  };
  EXPECT_EQ(failure(Fault::none), "");
  EXPECT_EQ(failure(Fault::past_the_end),
            "doubling, out: byte 1 after the last element of f32 (1001) on cpu was written");
  EXPECT_EQ(failure(Fault::input), "doubling, a: the op changed its input");
  EXPECT_EQ(failure(Fault::workspace),
            "doubling, workspace: byte 1 after the last element of u8 (64) on cpu was written");
  EXPECT_EQ(bytes_of(doubling(Fault::none)), 8008);
}

TEST(OpCase, OracleThreadsAndTypes) {
  CpuContext context({.threads = 2});
  expect_matches(doubling(Fault::none), context, doubling_oracle);
  EXPECT_NONFATAL_FAILURE(expect_matches(doubling(Fault::threads), context, doubling_oracle), "relative error");
  expect_same_bits_for_threads(doubling(Fault::none));
  EXPECT_FALSE(same_bits_for_threads(doubling(Fault::threads), {1, 2}));
  compare(doubling(Fault::none), doubling(Fault::none, DType::f64), 1e-6);
  EXPECT_NONFATAL_FAILURE(compare(doubling(Fault::none), doubling(Fault::threads), 1e-6), "doubling against doubling");
}

/// Returns the same op with OpCase::prepare, which requests 64 bytes of workspace. `prepared` counts the calls of
/// prepare.
OpCase with_plan(OpCase item, int& prepared) {
  item.prepare = [&prepared, run = item.run](Context&) {
    ++prepared;
    return PreparedOp{64, run};
  };
  item.run = {};
  return item;
}

TEST(OpCase, PreparedOpsRunWithTheirPlan) {
  int prepared = 0;
  const OpCase item = with_plan(doubling(Fault::none), prepared);
  CpuContext context;
  OpInstance instance(item, context);
  instance.run();
  instance.run();
  EXPECT_EQ(prepared, 1);
  EXPECT_EQ(instance.check(), "");
}

TEST(OpCase, ThreadControlRunsForPreparedOpsAndPassesOverEmptyOutputs) {
  int prepared = 0;
  const OpCase item = with_plan(doubling(Fault::none), prepared);
  expect_same_bits_for_threads(item);
  EXPECT_EQ(prepared, 6) << "three thread counts, with and without the flipped bit";

  OpCase two = doubling(Fault::none);
  two.outputs.insert(two.outputs.begin(), {"none", Shape{0}, DType::f32, {}});
  two.run = [run = two.run](Context& context, Views in, Views out, const TensorView& workspace) {
    run(context, in, out.subspan(1), workspace);
  };
  expect_same_bits_for_threads(two);
  two.outputs.pop_back();
  two.run = [](Context&, Views, Views, const TensorView&) {};
  expect_same_bits_for_threads(two);
}

TEST(OpCase, RepeatableMeansAllOutputs) {
  CpuContext context;
  OpCase item = doubling(Fault::none);
  item.outputs.push_back({"count", Shape{1}, DType::f32, {}});
  item.run = [run = item.run](Context& on, Views in, Views out, const TensorView& workspace) {
    run(on, in, out, workspace);
    out[1].span<float>()[0] = 1;
  };
  expect_repeatable(item, context);
  int calls = 0;
  item.run = [&calls, run = item.run](Context& on, Views in, Views out, const TensorView& workspace) {
    run(on, in, out, workspace);
    out[1].span<float>()[0] = static_cast<float>(++calls > 1);
  };
  ::testing::TestPartResultArray failures;
  {
    const ::testing::ScopedFakeTestPartResultReporter reporter(&failures);
    expect_repeatable(item, context);
  }
  EXPECT_EQ(failures.size(), 2) << "both repeats differ from the first run in the second output";
}

}  // namespace
}  // namespace lockstep::testing
