#include "tests/kernels/embedding_cases.hpp"

#include <functional>
#include <limits>

#include <lockstep/kernels/reduce.hpp>

#include "tests/support/gradient_check.hpp"
#include "tests/support/op_checks.hpp"

namespace lockstep::testing {
namespace {

using ops::GradMode;

TEST(Embedding, ByHand) {
  CpuContext context;
  GuardedTensor table(Shape{3, 2}, DType::f32, {1, 2, 3, 4, 5, 6});
  GuardedTensor ids(Shape{2, 2}, DType::i32, {2, 0, 2, 3});
  GuardedTensor positions(Shape{2, 2}, DType::f32, {10, 20, 30, 40});
  GuardedTensor y(Shape{2, 2, 2}, DType::f32);
  GuardedTensor bad(Shape{}, DType::f64, constant(5));
  ops::embedding_forward(context, table, ids, positions, {}, y, bad);
  EXPECT_EQ(y.values(), (std::vector<double>{15, 26, 31, 42, 15, 26, 0, 0}));
  EXPECT_EQ(bad.values()[0], 6);
  ops::embedding_forward(context, table, ids, {}, {}, y, {});
  EXPECT_EQ(y.values(), (std::vector<double>{5, 6, 1, 2, 5, 6, 0, 0}));

  GuardedTensor dy(Shape{2, 2, 2}, DType::f32, {1, 2, 3, 4, 50, 60, 7, 8});
  GuardedTensor dtable(Shape{3, 2}, DType::f32);
  ops::embedding_backward(context, dy, ids, GradMode::overwrite, dtable, {});
  EXPECT_EQ(dtable.values(), (std::vector<double>{3, 4, 0, 0, 51, 62}));
  ops::embedding_backward(context, dy, ids, GradMode::accumulate, dtable, {});
  EXPECT_EQ(dtable.values(), (std::vector<double>{6, 8, 0, 0, 102, 124}));
}

TEST(Embedding, BadIdsCountInTheValidSequencesOnly) {
  CpuContext context;
  GuardedTensor table(Shape{3, 1}, DType::f32, {1, 2, 3});
  GuardedTensor ids(Shape{3, 2}, DType::i32, {-1, 0, 3, 2, 1, 9});
  GuardedTensor valid(Shape{}, DType::i64);
  GuardedTensor y(Shape{3, 2, 1}, DType::f32);
  GuardedTensor bad(Shape{}, DType::f64);
  using Limits = std::numeric_limits<std::int64_t>;
  for (const auto& [count, expected] : {std::pair<std::int64_t, double>{0, 0},
                                        {1, 1},
                                        {2, 2},
                                        {3, 3},
                                        {4, 3},
                                        {Limits::max(), 3},
                                        {-1, 0},
                                        {Limits::min(), 0}}) {
    valid.span<std::int64_t>()[0] = count;
    bad.constant(0);
    ops::embedding_forward(context, table, ids, {}, valid, y, bad);
    EXPECT_EQ(bad.values()[0], expected) << count;
    EXPECT_EQ(y.values(), (std::vector<double>{0, 1, 0, 3, 2, 0})) << "rows are written for all";
  }
  ops::embedding_forward(context, table, ids, {}, {}, y, bad);
  EXPECT_EQ(bad.values()[0], 3) << "not given: all";
}

TEST(Embedding, IdsOutOfRangeReadAndWriteNothing) {
  const double low = std::numeric_limits<std::int32_t>::min();
  const double high = std::numeric_limits<std::int32_t>::max();
  OpCase forward = embedding_forward_case({4, 3, Shape{5}, true}, DType::f64);
  forward.inputs[1].start = values({low, 1, 4, -1, high});
  expect_matches(forward, [](Inputs in, Outputs expected) {
    std::vector<double> y(15, 0.0);
    for (std::size_t d = 0; d < 3; ++d) {
      y[3 + d] = in[0].values()[3 + d] + in[2].values()[3 + d];
    }
    expected[0].assign(y);
    expected[1].constant(2 + 4);
  });
  OpCase backward = embedding_backward_case({4, 3, Shape{5}}, DType::f64, GradMode::overwrite);
  backward.inputs[1].start = forward.inputs[1].start;
  expect_matches(backward, [](Inputs in, Outputs expected) {
    std::vector<double> dtable(12, 0.0);
    for (std::size_t d = 0; d < 3; ++d) {
      dtable[3 + d] = in[0].values()[3 + d];
    }
    expected[0].assign(dtable);
  });
}

/// Compares the op, which looks up the row of each token, with a reference that searches all tokens for each row of the
/// table.
TEST(Embedding, MatchesTheDefinition) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const EmbeddingParams& p : embedding_params()) {
      const auto width = static_cast<std::size_t>(p.width);
      const auto length = static_cast<std::size_t>(p.ids.back());
      expect_matches(embedding_forward_case(p, dtype), [&](Inputs in, Outputs expected) {
        const std::vector<double> table = in[0].values();
        const std::vector<double> ids = in[1].values();
        std::vector<double> y(ids.size() * width, 0.0);
        for (std::size_t v = 0; v < static_cast<std::size_t>(p.vocabulary); ++v) {
          for (std::size_t i = 0; i < ids.size(); ++i) {
            if (ids[i] == static_cast<double>(v)) {
              for (std::size_t d = 0; d < width; ++d) {
                y[i * width + d] = table[v * width + d] + (p.positions ? in[2].values()[i % length * width + d] : 0.0);
              }
            }
          }
        }
        expected[0].assign(y);
        if (p.positions) {
          double bad = 2;
          for (std::size_t i = 0; i < ids.size(); ++i) {
            const auto sequence = static_cast<std::int64_t>(i) / (p.ids.numel() / p.ids[0]);
            const bool counts = p.valid < 0 || sequence < p.valid;
            bad += counts && (ids[i] < 0 || ids[i] >= static_cast<double>(p.vocabulary)) ? 1 : 0;
          }
          expected[1].constant(bad);
        }
      });
      for (const GradMode mode : {GradMode::overwrite, GradMode::accumulate}) {
        expect_matches(embedding_backward_case(p, dtype, mode), [&](Inputs in, Outputs expected) {
          const std::vector<double> dy = in[0].values();
          const std::vector<double> ids = in[1].values();
          std::vector<double> dtable = expected[0].values();
          for (std::size_t e = 0; e < dtable.size(); ++e) {
            double sum = mode == GradMode::accumulate ? dtable[e] : 0.0;
            for (std::size_t i = 0; i < ids.size(); ++i) {
              sum += ids[i] == static_cast<double>(e / width) ? dy[i * width + e % width] : 0.0;
            }
            dtable[e] = sum;
          }
          expected[0].assign(dtable);
        });
      }
    }
  }
}

TEST(Embedding, SumsRunInTheOrderOfTheTokens) {
  OpCase item = embedding_backward_case({1, 1, Shape{3}}, DType::f32, GradMode::overwrite);
  item.inputs[1].start = constant(0);
  for (const auto& [dy, sum] : {std::pair<std::vector<double>, double>{{1, 0x1p24, -0x1p24}, 0},
                                {{0x1p24, -0x1p24, 1}, 1},
                                {{-0x1p24, 1, 0x1p24}, 1}}) {  // 1 - 2^24 is exact in f32, 1 + 2^24 is rounded to 2^24
    item.inputs[0].start = values(dy);
    expect_matches(item, [&, sum = sum](Inputs, Outputs expected) { expected[0].constant(sum); });
  }
}

TEST(Embedding, SumsBeginWithWhatIsThere) {
  OpCase item = embedding_backward_case({1, 1, Shape{2}}, DType::f32, GradMode::accumulate);
  item.inputs[1].start = constant(0);
  item.inputs[0].start = values({1, -0x1p24});
  item.outputs[0].start = constant(0x1p24);
  expect_matches(item, [](Inputs, Outputs expected) { expected[0].constant(0); });
}

TEST(Embedding, GradientsAreTheDerivatives) {
  CpuContext context({.threads = 2});
  GuardedTensor table(Shape{5, 3}, DType::f64, normal(1));
  GuardedTensor ids(Shape{2, 4}, DType::i32, {4, 0, 4, 1, 2, 2, 4, 0});
  GuardedTensor positions(Shape{4, 3}, DType::f64, normal(2));
  GuardedTensor y(Shape{2, 4, 3}, DType::f64);
  GuardedTensor dy(Shape{2, 4, 3}, DType::f64, normal(3));
  GuardedTensor dtable(Shape{5, 3}, DType::f64);
  GuardedTensor dpositions(Shape{4, 3}, DType::f64);
  const auto loss = [&] {
    ops::embedding_forward(context, table, ids, positions, {}, y, {});
    return weighted_sum(y, dy);
  };
  ops::embedding_backward(context, dy, ids, GradMode::overwrite, dtable, {});
  ops::reduce_rows(context, dy.view().reshape(Shape{2, 12}), GradMode::overwrite, dpositions.view().reshape(Shape{12}),
                   {});
  expect_gradients(loss, {{"table", table, dtable}, {"positions", positions, dpositions}});
}

TEST(Embedding, TheSameBitsForAnyNumberOfThreads) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    expect_same_bits_for_threads(embedding_forward_case({101, 300, Shape{7, 61}, true}, dtype));
    for (const GradMode mode : {GradMode::overwrite, GradMode::accumulate}) {
      expect_same_bits_for_threads(embedding_backward_case({11, 67, Shape{2003}}, dtype, mode));
    }
  }
  // Control: a sum whose order depends on the number of threads must fail this check.
  OpCase item = embedding_backward_case({1, 1, Shape{2003}}, DType::f32, GradMode::overwrite);
  item.run = [](Context& context, Views in, Views out, const TensorView&) {
    const int parts = static_cast<CpuContext&>(context).threads();
    float total = 0;
    for (int part = 0; part < parts; ++part) {
      float sum = 0;
      for (int i = 2003 * part / parts; i < 2003 * (part + 1) / parts; ++i) {
        sum += in[0].as<float>()[i];
      }
      total += sum;
    }
    out[0].as<float>()[0] = total;
  };
  EXPECT_FALSE(same_bits_for_threads(item, {1, 2, 3}));
}

TEST(Embedding, RefusesWhatTheContractExcludes) {
  CpuContext context;
  const GuardedTensor table(Shape{5, 3}, DType::f32);
  const GuardedTensor ids(Shape{2, 4}, DType::i32);
  const GuardedTensor positions(Shape{4, 3}, DType::f32);
  const GuardedTensor y(Shape{2, 4, 3}, DType::f32);
  const GuardedTensor bad(Shape{}, DType::f64);
  const GuardedTensor valid(Shape{}, DType::i64);
  expect_views_checked(
      {ids, y},
      [&](const std::vector<TensorView>& v) { ops::embedding_forward(context, table, v[0], {}, {}, v[1], bad); }, true);
  expect_views_checked({ids, positions, y}, [&](const std::vector<TensorView>& v) {
    ops::embedding_forward(context, table, v[0], v[1], {}, v[2], bad);
  });
  // The table may have any number of rows, so only its other properties are checked.
  const auto spoil_table = [](const GuardedTensor& good, const std::function<void(const TensorView&)>& call) {
    EXPECT_NO_THROW(call(good));
    EXPECT_THROW(call({}), ShapeError);
    EXPECT_THROW(call(good.view().reshape(Shape{15})), ShapeError);
    EXPECT_THROW(call(good.view().reshape(Shape{3, 5})), ShapeError);
    EXPECT_THROW(call(good.view().reshape(Shape{3, 5}).permute({1, 0})), ShapeError);
    EXPECT_THROW(call(with(good, &TensorView::device, Device::cuda(0))), DeviceError);
    for (const DType dtype : {DType::f16, DType::i32, DType::f64}) {
      EXPECT_THROW(call(with(good, &TensorView::dtype, dtype)), DTypeError) << dtype;
    }
  };
  spoil_table(table, [&](const TensorView& v) { ops::embedding_forward(context, v, ids, {}, {}, y, {}); });
  const auto count = [&](const TensorView& scalar) {
    ops::embedding_forward(context, table, ids, positions, valid, y, scalar);
  };
  const auto counting = [&](const TensorView& scalar) {
    ops::embedding_forward(context, table, ids, positions, scalar, y, bad);
  };
  EXPECT_NO_THROW(count(bad));
  EXPECT_THROW(count(GuardedTensor(Shape{2}, DType::f64)), ShapeError);
  EXPECT_THROW(count(GuardedTensor(Shape{}, DType::f32)), DTypeError);
  EXPECT_THROW(count(with(bad, &TensorView::device, Device::cuda(0))), DeviceError);
  EXPECT_NO_THROW(counting(valid));
  EXPECT_THROW(counting(GuardedTensor(Shape{2}, DType::i64)), ShapeError);
  EXPECT_THROW(counting(GuardedTensor(Shape{}, DType::i32)), DTypeError);
  EXPECT_THROW(counting(with(valid, &TensorView::device, Device::cuda(0))), DeviceError);
  const auto at = [](const GuardedTensor& like, const GuardedTensor& memory) {
    TensorView view = like;
    view.data = memory.view().data;
    return view;
  };
  for (const GuardedTensor* other : {&table, &ids, &positions, &valid}) {
    EXPECT_THROW(ops::embedding_forward(context, table, ids, positions, valid, at(y, *other), bad), ShapeError);
    EXPECT_THROW(count(at(bad, *other)), ShapeError);
  }
  EXPECT_THROW(count(at(bad, y)), ShapeError);
  EXPECT_THROW(ops::embedding_forward(context, table, TensorView(ids.view().data, DType::i32, Device::cpu(), Shape{}),
                                      {}, {}, y.view().reshape(Shape{24}), {}),
               ShapeError);

  const GuardedTensor dtable(Shape{5, 3}, DType::f32);
  expect_views_checked(
      {y, ids},
      [&](const std::vector<TensorView>& v) {
        ops::embedding_backward(context, v[0], v[1], GradMode::overwrite, dtable, {});
      },
      true);
  spoil_table(dtable,
              [&](const TensorView& v) { ops::embedding_backward(context, y, ids, GradMode::overwrite, v, {}); });
  EXPECT_EQ(ops::embedding_backward_workspace_bytes(context, dtable), 0U);
  EXPECT_THROW(static_cast<void>(ops::embedding_backward_workspace_bytes(context, y)), ShapeError);
  EXPECT_THROW(ops::embedding_backward(context, y, ids, GradMode::ignore, dtable, {}), UsageError);
  for (const GuardedTensor* other : {&y, &ids}) {
    EXPECT_THROW(ops::embedding_backward(context, y, ids, GradMode::overwrite, at(dtable, *other), {}), ShapeError);
  }
  const std::int64_t many = std::int64_t{1} << 31;  // number of rows and tokens; no memory is read
  EXPECT_THROW(ops::embedding_backward(context, TensorView(y.view().data, DType::f32, Device::cpu(), Shape{many, 3}),
                                       TensorView(ids.view().data, DType::i32, Device::cpu(), Shape{many}),
                                       GradMode::overwrite, dtable, {}),
               ShapeError);
}

}  // namespace
}  // namespace lockstep::testing
