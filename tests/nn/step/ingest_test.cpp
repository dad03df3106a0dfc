// Tests ingest() and emit(). Compares every order of axes, type and stride with a loop over single numbers.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include <lockstep/nn/step/ingest.hpp>

#include "tests/support/error_of.hpp"

namespace lockstep::nn {
namespace {

using testing::error_of;

StepLayout layout_of(InputKind kind, const Shape& input, const Shape& output = {3}, bool regression = false) {
  return {.model = "net",
          .dtype = DType::f32,
          .input_kind = kind,
          .input = input,
          .output = output,
          .regression = regression};
}

/// Returns element (n, h, w, c) of a field of images or values.
float at(const TensorView& view, std::int64_t n, std::int64_t h, std::int64_t w, std::int64_t c) {
  return static_cast<const float*>(
      view.data)[n * view.strides[0] + h * view.strides[1] + w * view.strides[2] + c * view.strides[3]];
}

TEST(Ingest, AnyOrderOfAxesAndThreeChannelsStoredAsFour) {
  constexpr std::int64_t kN = 4, kH = 2, kW = 5, kC = 3;
  CpuContext context;
  const StepLayout layout = layout_of(InputKind::values, {kH, kW, kC});
  for (const std::string axes : {"nhwc", "nchw", "hwnc", "cwhn", "whcn", "nnhwc", "nhnwc", "cnhwn"}) {
    StepState state(context, kN + 1, layout);
    // Each letter names an axis of the tensor. "n" twice means that two axes together number the samples.
    Shape shape;
    for (const char letter : axes) {
      const bool split = std::count(axes.begin(), axes.end(), 'n') == 2;
      const std::int64_t extent = letter == 'n' ? (split ? 2 : kN) : letter == 'h' ? kH : letter == 'w' ? kW : kC;
      shape.push_back(extent);
    }
    std::vector<double> numbers(static_cast<std::size_t>(shape.numel()));
    std::iota(numbers.begin(), numbers.end(), 1.0);
    const TensorView from(std::span<double>{numbers}, shape);
    ingest(context, state, {StateField::values, from, axes}, 1);
    const TensorView& to = state.view(StateField::values);
    ASSERT_EQ(to.shape, (Shape{kN + 1, kH, kW, 4}));
    for (std::int64_t i = 0; i < from.numel(); ++i) {
      std::int64_t rest = i;
      std::int64_t n = 0, h = 0, w = 0, c = 0, n_factor = 1;
      for (int axis = shape.rank(); axis-- > 0;) {
        const std::int64_t index = rest % shape[axis];
        rest /= shape[axis];
        switch (axes[static_cast<std::size_t>(axis)]) {
          case 'n':
            n += n_factor * index;
            n_factor *= shape[axis];
            break;
          case 'h':
            h = index;
            break;
          case 'w':
            w = index;
            break;
          default:
            c = index;
        }
      }
      ASSERT_EQ(at(to, n + 1, h, w, c), numbers[static_cast<std::size_t>(i)]) << axes << ' ' << i;
    }
    for (std::int64_t n = 0; n <= kN; ++n) {
      EXPECT_EQ(at(to, n, 1, 2, 3), 0) << "the padding stays zero";
      EXPECT_EQ(n == 0, at(to, n, 1, 2, 1) == 0) << "sample 0 was left alone";
    }
    // emit() copies back from the logical part of the field, which is the field without its padding channel.
    std::vector<std::int32_t> out(static_cast<std::size_t>(shape.numel()), -1);
    const StepLayout images = layout_of(InputKind::values, {kH, kW, kC}, {kH, kW, kC}, true);
    emit(context, images, to.slice(0, 1, kN + 1).slice(3, 0, kC),
         {StateField::targets, TensorView(std::span(out), shape), axes});
    for (std::size_t i = 0; i < out.size(); ++i) {
      ASSERT_EQ(out[i], numbers[i]) << axes;
    }
  }
}

TEST(Ingest, MissingLettersHaveExtentOne) {
  CpuContext context;
  const StepLayout layout = layout_of(InputKind::values, {3, 4, 1});
  StepState state(context, 2, layout);
  std::vector<float> section(12);
  std::iota(section.begin(), section.end(), 1.0F);
  ingest(context, state, {StateField::values, TensorView(std::span(section), {4, 3}), "wh"}, 1);
  const TensorView& to = state.view(StateField::values);
  EXPECT_EQ(at(to, 1, 2, 3, 0), 12);
  EXPECT_EQ(at(to, 1, 1, 0, 0), 2);
  EXPECT_EQ(at(to, 0, 1, 0, 0), 0);
}

TEST(Ingest, StridedTokensLabelsAndTypes) {
  CpuContext context;
  const StepLayout layout = layout_of(InputKind::tokens, {3}, {3, 7});
  StepState state(context, 2, layout);
  std::vector<std::int64_t> numbers{5, 0, 4, 0, 3, 0, 2, 0, 1, 0, 6, 0};
  const TensorView every_second(numbers.data(), DType::i64, Device::cpu(), {2, 3}, {6, 2});
  ingest(context, state, {StateField::tokens, every_second});
  ingest(context, state, {StateField::labels, every_second.permute({1, 0}), "tn"});
  for (const StateField field : {StateField::tokens, StateField::labels}) {
    const auto got = state.view(field).span<std::int32_t>();
    EXPECT_EQ(std::vector<std::int32_t>(got.begin(), got.end()), (std::vector<std::int32_t>{5, 4, 3, 2, 1, 6}));
  }
  EXPECT_EQ(samples_of(layout, FieldView{StateField::tokens, every_second}), 2);
}

TEST(Ingest, ErrorsSpeakOfTheModel) {
  CpuContext context;
  const StepLayout layout = layout_of(InputKind::values, {8, 9, 2});
  StepState state(context, 4, layout);
  std::vector<float> memory(4 * 8 * 9 * 2);
  const auto error = [&](StateField field, const Shape& shape, const std::string& axes) {
    std::vector<float> values(static_cast<std::size_t>(shape.numel()));
    return error_of<ShapeError>([&] { ingest(context, state, {field, TensorView(std::span(values), shape), axes}); });
  };
  EXPECT_EQ(error(StateField::values, {4, 8, 9, 3}, ""), "the input has 3 channels, model net takes 2");
  EXPECT_EQ(error(StateField::values, {4, 2, 7, 9}, "nchw"), "the input has 7 rows, model net takes 8");
  EXPECT_EQ(error(StateField::values, {4, 8, 9}, ""),
            "the input has shape (4, 8, 9), expected 4 axes (nhwc), as model net counts them");
  EXPECT_EQ(error(StateField::values, {4, 8, 9}, "nc"),
            "the input has shape (4, 8, 9), expected 2 axes (nc), as model net is told");
  EXPECT_EQ(error(StateField::values, {4, 8, 9}, "nhw"), "the input has no axis 'c' (nhw), model net takes 2 channels");
  EXPECT_EQ(error(StateField::values, {4, 8, 9, 2}, "nhxc"),
            "the input has an axis 'x' (nhxc), expected an axis of nhwc as model net takes them");
  EXPECT_EQ(error(StateField::values, {4, 8, 8, 2}, "nhhc"),
            "the input has two axes 'h' (nhhc), expected each axis once; only n may stand more than once");
  EXPECT_EQ(error(StateField::values, {5, 8, 9, 2}, ""), "the input has 5 samples, expected at most 4 of a batch of 4");
  EXPECT_EQ(error(StateField::tokens, {4, 8}, ""), "model net takes no tokens, expected values as its input");
  EXPECT_EQ(error(StateField::targets, {4, 3}, ""),
            "model net takes no targets: its loss is over classes, with labels");
  EXPECT_THROW(ingest(context, state, {StateField::valid, TensorView(std::span(memory).first(1), {1})}), UsageError);
  EXPECT_THROW(ingest(context, state, {StateField::values, TensorView()}), ShapeError);
}

}  // namespace
}  // namespace lockstep::nn
