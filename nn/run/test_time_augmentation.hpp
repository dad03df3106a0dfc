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
/// (Krizhevsky, Sutskever, Hinton 2012, section 4.1; in the form of Jordan 2024, "94% on CIFAR-10 in 3.29 Seconds on a
/// Single GPU", section 3.5).
namespace lockstep::nn {

enum class TestTimeAugmentation : unsigned char {
  none,    ///< only the image as it is
  mirror,  ///< the image and its left-right mirror image, with half the weight each
  /// The image and its mirror image with weight 1/4 each; each of the two moved by one pixel up and left, and by one
  /// pixel down and right, with weight 1/8 each.
  mirror_translate
};
[[nodiscard]] std::string_view name_of(TestTimeAugmentation views);  ///< "none", "mirror", "mirror-translate"

/// One view of an image: out[h, w] = image[h + shift, w' + shift], with w' = W - 1 - w if mirrored, otherwise w' = w.
/// Pixels outside of the image are reflected about the edge pixels. The weights of all views add up to 1.
struct TestTimeView {
  bool mirror = false;
  std::int64_t shift = 0;
  double weight = 1;
};
[[nodiscard]] std::span<const TestTimeView> test_time_views(
    TestTimeAugmentation views);  ///< returns the views; the first view is the image as it is

/// Throws UsageError, which names the extents, unless both sides of an image with shape `image` (H, W, C) have more
/// pixels than the largest shift of a view. With TestTimeAugmentation::none accepts any shape.
void require_views_fit(TestTimeAugmentation views, const Shape& image);

/// Writes the view `view` of each of the `images` to `out`. Both tensors are contiguous u8 tensors (N, H, W, C) on the
/// host without overlap; otherwise ShapeError, DTypeError or DeviceError. UsageError if H or W is not above view.shift.
void show_view(const TestTimeView& view, const TensorView& images, const TensorView& out);

/// Computes metrics of the mean output over all views, for the samples of a micro-batch, on the host in f64.
class ViewedBatch {
 public:
  /// `top_k` means PlanOptions::top_k.
  explicit ViewedBatch(int top_k) : top_k_(top_k) {}
  /// Begins a micro-batch of `rows` outputs. Only the first `valid` outputs count in metrics().
  void begin(std::int64_t rows, std::int64_t valid);
  /// Adds weight * output to the mean. `output` (rows, classes) is on the device. Waits until the host has it.
  void add(Context& context, double weight, const TensorView& output);
  /// Writes the mean to `output`, a tensor on the device with the shape of the outputs in add(). Waits for the copy.
  void write(Context& context, const TensorView& output) const;
  /// Returns cross entropy and correct predictions of the mean, as ops::softmax_cross_entropy and ops::top_k_correct
  /// define them. Ignores labels outside of the classes. `labels` is an i32 tensor (rows) on the host.
  [[nodiscard]] Metrics metrics(const TensorView& labels) const;

 private:
  int top_k_;
  std::int64_t rows_ = 0;
  std::int64_t valid_ = 0;
  std::int64_t classes_ = 0;
  std::vector<double> mean_;   ///< sum of the weighted outputs so far: (rows, classes)
  std::vector<double> given_;  ///< output of the newest add(): (rows, classes)
};

}  // namespace lockstep::nn
