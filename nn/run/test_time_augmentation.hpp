#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <lockstep/nn/batch/batch.hpp>
#include <lockstep/nn/batch/metrics.hpp>
#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

/// Test-time augmentation: an evaluation computes the outputs for several views of each image and takes their mean
/// (Krizhevsky, Sutskever, Hinton 2012, section 4.1). The views are those of Jordan 2024, "94% on CIFAR-10 in 3.29
/// Seconds on a Single GPU", section 3.5.
namespace lockstep::nn {

enum class TestTimeAugmentation : unsigned char {
  none,    ///< only the image as it is
  mirror,  ///< image and its left-right mirror image, with weight 1/2 each
  /// Six views. The image and its mirror image have weight 1/4 each. Each of these two is also moved by one pixel up
  /// and left, and by one pixel down and right; the moved images have weight 1/8 each.
  mirror_translate
};
/// Returns "none", "mirror" or "mirror-translate".
[[nodiscard]] std::string_view name_of(TestTimeAugmentation views);

/// One view of an image: out[h, w] = image[h + shift, w' + shift], with w' = W - 1 - w if `mirror`, otherwise w' = w. A
/// pixel outside the image is taken from inside, reflected about the pixels of the edge. The weights of all views add
/// up to 1.
struct TestTimeView {
  bool mirror = false;
  std::int64_t shift = 0;
  double weight = 1;
};
[[nodiscard]] std::span<const TestTimeView> test_time_views(
    TestTimeAugmentation views);  ///< returns the views; the first view is the unchanged image

/// Throws UsageError, which names the sizes, if the height or width of an image of shape `image` (H, W, C) is not
/// larger than the largest shift of a view. Accepts any shape with TestTimeAugmentation::none.
void require_views_fit(TestTimeAugmentation views, const Shape& image);

/// Writes the view `view` of each image to `out`. `images` and `out` must be contiguous u8 tensors (N, H, W, C) on the
/// host that do not overlap; otherwise throws ShapeError, DTypeError or DeviceError. Throws UsageError unless H and W
/// are above view.shift.
void show_view(const TestTimeView& view, const TensorView& images, const TensorView& out);

/// Computes the mean output over all views for a micro-batch, and the metrics of this mean, on the host in f64.
class ViewedBatch {
 public:
  /// `top_k` is PlanOptions::top_k.
  explicit ViewedBatch(int top_k) : top_k_(top_k) {}
  /// Begins a micro-batch of `rows` outputs. Only the first `valid` outputs count in metrics().
  void begin(std::int64_t rows, std::int64_t valid);
  /// Adds weight * output to the mean. `output` has shape (rows, classes) and is on the device. Waits for its copy to
  /// the host.
  void add(Context& context, double weight, const TensorView& output);
  /// Writes the mean to `output`, a tensor on the device with the shape of the outputs in add(). Waits for the copy.
  void write(Context& context, const TensorView& output) const;
  /// Returns the cross entropy and the number of correct predictions of the mean, as ops::softmax_cross_entropy and
  /// ops::top_k_correct define them. Ignores labels that are not classes. `labels` is an i32 tensor of shape (rows) on
  /// the host.
  [[nodiscard]] Metrics metrics(const TensorView& labels) const;

 private:
  int top_k_;
  std::int64_t rows_ = 0;
  std::int64_t valid_ = 0;
  std::int64_t classes_ = 0;
  std::vector<double> mean_;   ///< sum of the weighted outputs so far: (rows, classes)
  std::vector<double> given_;  ///< output of the last add(): (rows, classes)
};

}  // namespace lockstep::nn
