#include "tests/support/op_checks.hpp"

#include <algorithm>

namespace lockstep::testing {

void run_checked(OpInstance& instance, const char* file, int line) {
  instance.run();
  if (const std::string failure = instance.check(); !failure.empty()) {
    ADD_FAILURE_AT(file, line) << failure;
  }
}

void expect_matches(const OpCase& item, Context& context, const Oracle& oracle, const char* file, int line) {
  const CheckedRun instance(item, context, nullptr, file, line);
  std::vector<GuardedTensor> expected;
  for (const TensorSpec& spec : item.outputs) {
    expected.emplace_back(spec.shape, spec.dtype);
    if (spec.start) {
      spec.start(expected.back());
    }
  }
  oracle(instance.inputs(), expected);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const std::string what = item.name + ", " + item.outputs[i].name;
    if (item.tolerance == 0) {
      expect_same_bits(instance.output(i), expected[i], what, file, line);
    } else {
      expect_close(instance.output(i), expected[i], item.tolerance, what, file, line);
    }
  }
}

void expect_matches(const OpCase& item, const Oracle& oracle, const char* file, int line) {
  static CpuContext context({.threads = 2});
  expect_matches(item, context, oracle, file, line);
}

::testing::AssertionResult same_bits_for_threads(const OpCase& item, const std::vector<int>& threads) {
  std::vector<std::unique_ptr<CpuContext>> contexts;
  std::vector<std::unique_ptr<OpInstance>> instances;
  for (const int count : threads) {
    contexts.push_back(std::make_unique<CpuContext>(CpuContext::Options{.threads = count}));
    instances.push_back(std::make_unique<OpInstance>(item, *contexts.back()));
    instances.back()->run();
    if (const std::string failure = instances.back()->check(); !failure.empty()) {
      return ::testing::AssertionFailure() << failure << " with " << count << " threads";
    }
    for (std::size_t i = 0; i < item.outputs.size(); ++i) {
      if (auto result = has_same_bits(instances.front()->output(i), instances.back()->output(i)); !result) {
        return ::testing::AssertionFailure() << item.name << ", " << item.outputs[i].name << ", " << threads.front()
                                             << " and " << count << " threads: " << result.message();
      }
    }
  }
  return ::testing::AssertionSuccess() << item.name << ": the same bits for every thread count";
}

void expect_same_bits_for_threads(const OpCase& item, const std::vector<int>& threads, const char* file, int line) {
  if (const auto result = same_bits_for_threads(item, threads); !result) {
    ADD_FAILURE_AT(file, line) << result.message();
  }
  const auto shown = std::find_if(item.outputs.begin(), item.outputs.end(),
                                  [](const TensorSpec& spec) { return spec.shape.numel() > 0; });
  if (shown == item.outputs.end()) {
    return;  // no output has a bit to flip
  }
  const auto flip = [last = threads.back(), index = static_cast<std::size_t>(shown - item.outputs.begin())](RunOp run) {
    return [=](Context& context, Views in, Views out, const TensorView& workspace) {
      run(context, in, out, workspace);
      if (static_cast<CpuContext&>(context).threads() == last) {
        static_cast<std::uint8_t*>(out[index].data)[out[index].bytes() - 1] ^= 1;
      }
    };
  };
  OpCase disturbed = item;
  if (item.prepare) {
    disturbed.prepare = [prepare = item.prepare, flip](Context& context) {
      PreparedOp op = prepare(context);
      op.run = flip(op.run);
      return op;
    };
  } else {
    disturbed.run = flip(item.run);
  }
  if (same_bits_for_threads(disturbed, threads)) {
    ADD_FAILURE_AT(file, line) << item.name << ": a flipped bit does not show";
  }
}

void expect_same_outputs(const OpInstance& a, const OpInstance& b, std::string_view what, const char* file, int line) {
  ASSERT_EQ(a.outputs().size(), b.outputs().size());
  for (std::size_t i = 0; i < a.outputs().size(); ++i) {
    expect_same_bits(a.output(i), b.output(i), concat(what, ", output ", i), file, line);
  }
}

void expect_taken_for(Context& context, OpCase item, std::size_t input, std::int64_t told, std::int64_t meant,
                      const char* file, int line) {
  item.inputs.at(input).start = constant(static_cast<double>(told));
  const CheckedRun wrong(item, context, nullptr, file, line);
  item.inputs.at(input).start = constant(static_cast<double>(meant));
  expect_same_outputs(wrong, CheckedRun(item, context, nullptr, file, line), concat(item.name, " with ", told), file,
                      line);
}

void expect_repeatable(const OpCase& item, Context& context, const char* file, int line) {
  const CheckedRun first(item, context, nullptr, file, line);
  OpInstance again(item, context);
  for (int repeat = 0; repeat < 2; ++repeat) {
    run_checked(again, file, line);
    for (std::size_t i = 0; i < item.outputs.size(); ++i) {
      expect_same_bits(first.output(i), again.output(i), item.name + ", " + item.outputs[i].name, file, line);
    }
  }
  OpCase other = item;
  other.inputs[0].start = uniform(5, -1, 1);
  const CheckedRun changed(other, context, nullptr, file, line);
  bool same = true;
  for (std::size_t i = 0; i < item.outputs.size(); ++i) {
    same = same && has_same_bits(first.output(i), changed.output(i));
  }
  if (same) {
    ADD_FAILURE_AT(file, line) << item.name << ": another input gives the same bits";
  }
}

void expect_gradients(const std::function<double()>& loss, const std::vector<GradientPair>& pairs, double tolerance,
                      std::string_view what, double h, std::int64_t max_elements, const char* file, int line) {
  const auto error = [&] { return gradient_error(loss, pairs, h, max_elements); };
  if (const double found = error(); !(found <= tolerance)) {
    ADD_FAILURE_AT(file, line) << what << ": the gradients are off by " << found << ", expected " << tolerance;
  }
  for (const GradientPair& pair : pairs) {
    const std::vector<double> right = to_doubles(pair.gradient);
    for (double& value : pair.gradient.span<double>()) {
      value *= 1.01;
    }
    if (!(error() > 1e-3)) {
      ADD_FAILURE_AT(file, line) << what << ": a wrong gradient of " << pair.name << " does not show";
    }
    from_doubles(right, pair.gradient);
  }
}

void expect_views_checked(std::vector<TensorView> views,
                          const std::function<void(const std::vector<TensorView>&)>& call, bool all_required) {
  EXPECT_NO_THROW(call(views));
  for (std::size_t i = 0; i < views.size(); ++i) {
    const TensorView good = views[i];
    views[i].device = Device::cuda(0);
    EXPECT_THROW(call(views), DeviceError) << i;
    views[i] = good;
    views[i].dtype = DType::f16;
    EXPECT_THROW(call(views), DTypeError) << i;
    views[i] = good;
    views[i].shape[0] += 1;
    EXPECT_THROW(call(views), ShapeError) << i;
    views[i] = good;
    views[i].strides[0] += 1;
    EXPECT_THROW(call(views), ShapeError) << i;
    if (size_of(good.dtype) > 1) {
      views[i] = good;
      views[i].data = static_cast<std::byte*>(good.data) + 1;
      EXPECT_THROW(call(views), ShapeError) << i;
    }
    if (all_required) {
      views[i] = {};
      EXPECT_THROW(call(views), ShapeError) << i;
    }
    views[i] = good;
  }
}

void compare(const OpCase& a, Context& context_a, const OpCase& b, Context& context_b, double tolerance,
             const char* file, int line) {
  const CheckedRun first(a, context_a, nullptr, file, line);
  const CheckedRun second(b, context_b, &first.inputs(), file, line);
  if (a.outputs.size() != b.outputs.size()) {
    ADD_FAILURE_AT(file, line) << a.name << " has " << a.outputs.size() << " outputs, " << b.name << " "
                               << b.outputs.size();
    return;
  }
  for (std::size_t i = 0; i < a.outputs.size(); ++i) {
    const std::string what = b.name + " against " + a.name + ", " + a.outputs[i].name;
    if (is_floating(a.outputs[i].dtype)) {
      expect_close(second.output(i), first.output(i), tolerance, what, file, line);
    } else {
      expect_same_bits(second.output(i), first.output(i), what, file, line);
    }
  }
}

void compare(const OpCase& a, const OpCase& b, double tolerance, const char* file, int line) {
  CpuContext context;
  compare(a, context, b, context, tolerance, file, line);
}

}  // namespace lockstep::testing
