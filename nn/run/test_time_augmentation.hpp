#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <lockstep/nn/batch/batch.hpp>
#include <lockstep/nn/batch/metrics.hpp>
#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

/// Test-time augmentation: an evaluation that sees each image in several views and takes the mean of the outputs
/// (Krizhevsky, Sutskever, Hinton 2012, section 4.1; as here Jordan 2024, "94% on CIFAR-10 in 3.29 Seconds on a Single
/// GPU", section 3.5).
namespace lockstep::nn {

enum class TestTimeAugmentation : unsigned char {
  none,    ///< the image as it is
  mirror,  ///< the image and its mirror image, left to right, half each
  /// Both also moved, one pixel up and left and one down and right: 1/4 each as they are, 1/8 each moved.
  mirror_translate
};
[[nodiscard]] std::string_view name_of(TestTimeAugmentation views);  ///< "none", "mirror", "mirror-translate"

/// One of the views: out[h, w] = image[h + shift, w' + shift], with w' = W - 1 - w when mirrored; pixels outside are
/// reflected about the edge pixels. The weights of all views add up to 1.
struct TestTimeView {
  bool mirror = false;
  std::int64_t shift = 0;
  double weight = 1;
};
[[nodiscard]] std::span<const TestTimeView> test_time_views(
    TestTimeAugmentation views);  ///< the first view is the image as it is

/// Throws UsageError naming the extents unless images (H, W, C) have more pixels a side than a view moves them. `none`
/// takes any shape.
void require_views_fit(TestTimeAugmentation views, const Shape& image);

/// Writes a view of `images` to `out`. Both are (N, H, W, C), u8, contiguous, on the host, without overlap: ShapeError,
/// DTypeError or DeviceError otherwise; UsageError when H or W is not above the shift.
void show_view(const TestTimeView& view, const TensorView& images, const TensorView& out);

/// Metrics of the mean of all views' outputs for the samples of a micro-batch. Computed on the host in f64.
class ViewedBatch {
 public:
  /// top_k: PlanOptions::top_k.
  explicit ViewedBatch(int top_k) : top_k_(top_k) {}
  /// Begins a micro-batch of `rows` outputs, of which `valid` count.
  void begin(std::int64_t rows, std::int64_t valid);
  /// Adds weight * output, (rows, classes) on the device; waits for it.
  void add(Context& context, double weight, const TensorView& output);
  /// Writes the mean to a tensor on the device, of the shape of those of add(); waits.
  void write(Context& context, const TensorView& output) const;
  /// Returns cross entropy and correct predictions of the mean, as ops::softmax_cross_entropy and ops::top_k_correct
  /// define them. Leaves out labels that are none of the classes. labels: i32 (rows) on the host.
  [[nodiscard]] Metrics metrics(const TensorView& labels) const;

 private:
  int top_k_;
  std::int64_t rows_ = 0;
  std::int64_t valid_ = 0;
  std::int64_t classes_ = 0;
  std::vector<double> mean_;   ///< (rows, classes)
  std::vector<double> given_;  ///< (rows, classes), the newest output
};

}  // namespace lockstep::nn
