#include <lockstep/nn/run/test_time_augmentation.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include <lockstep/kernels/prediction.hpp>
#include <lockstep/nn/data/images/placement.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/tensor/copy.hpp>

namespace lockstep::nn {

std::string_view name_of(TestTimeAugmentation views) {
  static constexpr std::array<std::string_view, 3> kNames{"none", "mirror", "mirror-translate"};
  return kNames.at(static_cast<std::size_t>(views));
}

std::span<const TestTimeView> test_time_views(TestTimeAugmentation views) {
  static constexpr std::array<TestTimeView, 1> kNone{{{false, 0, 1}}};
  static constexpr std::array<TestTimeView, 2> kMirror{{{false, 0, 0.5}, {true, 0, 0.5}}};
  static constexpr std::array<TestTimeView, 6> kTranslate{
      {{false, 0, 0.25}, {true, 0, 0.25}, {false, -1, 0.125}, {true, -1, 0.125}, {false, 1, 0.125}, {true, 1, 0.125}}};
  static constexpr std::array<std::span<const TestTimeView>, 3> kViews{kNone, kMirror, kTranslate};
  return kViews.at(static_cast<std::size_t>(views));
}

void require_views_fit(TestTimeAugmentation views, const Shape& image) {
  for (const TestTimeView& view : test_time_views(views)) {
    const std::int64_t reach = std::abs(view.shift);
    require<UsageError>(reach == 0 || (image.rank() == 3 && image[0] > reach && image[1] > reach), "test views are ",
                        name_of(views), " for images ", image, ", expected images (H, W, C) of more than ", reach,
                        " pixel a side");
  }
}

void show_view(const TestTimeView& view, const TensorView& images, const TensorView& out) {
  require<ShapeError>(images.shape.rank() == 4 && out.shape == images.shape, "test views: images are ", images.shape,
                      " and out is ", out.shape, ", expected (N, H, W, C), both");
  require<DTypeError>(images.dtype == DType::u8 && out.dtype == DType::u8, "test views: images are ", images.dtype,
                      " and out is ", out.dtype, ", expected u8");
  require<ShapeError>(images.is_contiguous() && out.is_contiguous(), "test views: images have strides ", images.strides,
                      " and out has ", out.strides, ", expected contiguous tensors");
  require<DeviceError>(images.device == Device::cpu() && out.device == Device::cpu(), "test views: images are on ",
                       images.device, " and out is on ", out.device, ", expected host memory");
  require<ShapeError>(!overlaps(images, out),
                      "test views: images and out overlap, expected memory of its own for each");
  const std::int64_t height = images.shape[1];
  const std::int64_t width = images.shape[2];
  const std::int64_t channels = images.shape[3];
  const std::int64_t reach = std::abs(view.shift);
  require<UsageError>(images.shape.numel() == 0 || (height > reach && width > reach), "test views: images are ", height,
                      " x ", width, " and move by ", reach, ", expected more than ", reach, " pixel a side");
  const auto* from = images.as<std::uint8_t>();
  auto* to = out.as<std::uint8_t>();
  const std::int64_t pixels = height * width * channels;
  for (std::int64_t n = 0; n < images.shape[0]; ++n) {
    images::show({width, height}, channels, {view.shift, view.shift, view.mirror}, images::Outside::reflected,
                 from + n * pixels, to + n * pixels);
  }
}

void ViewedBatch::begin(std::int64_t rows, std::int64_t valid) {
  rows_ = rows;
  valid_ = valid;
  std::fill(mean_.begin(), mean_.end(), 0.0);
}

void ViewedBatch::add(Context& context, double weight, const TensorView& output) {
  require<ShapeError>(output.shape.rank() == 2 && output.shape[0] == rows_ && valid_ <= rows_,
                      "test views: an output is ", output.shape, ", expected (", rows_, ", classes)");
  classes_ = output.shape[1];
  mean_.resize(static_cast<std::size_t>(output.numel()));
  given_.resize(mean_.size());
  copy_now(context, output, TensorView(std::span(given_), output.shape));
  for (std::size_t i = 0; i < mean_.size(); ++i) {
    mean_[i] += weight * given_[i];
  }
}

void ViewedBatch::write(Context& context, const TensorView& output) const {
  std::vector<double> values = mean_;
  copy_now(context, TensorView(std::span(values), {rows_, classes_}), output);
}

Metrics ViewedBatch::metrics(const TensorView& labels) const {
  Metrics sums;
  sums.samples = sums.weight = static_cast<double>(valid_);
  const auto* label = labels.as<std::int32_t>();
  for (std::int64_t n = 0; n < valid_; ++n) {
    if (label[n] < 0 || label[n] >= classes_) {
      continue;
    }
    const std::span row =
        std::span(mean_).subspan(static_cast<std::size_t>(n * classes_), static_cast<std::size_t>(classes_));
    const auto at = [&](std::int64_t k) { return row[static_cast<std::size_t>(k)]; };
    const double largest = ops::predict(classes_, at).largest;
    double sum = 0;
    for (const double output : row) {
      sum += std::exp(output - largest);
    }
    sums.loss_sum += std::log(sum) + largest - at(label[n]);
    const std::int64_t ahead = ops::rank_of(classes_, label[n], at);
    sums.correct += ahead < 1 ? 1 : 0;
    sums.top_k_correct += ahead < top_k_ ? 1 : 0;
  }
  return sums;
}

}  // namespace lockstep::nn
