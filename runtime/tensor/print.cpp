#include <lockstep/runtime/tensor/print.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include <lockstep/runtime/tensor/copy.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>

namespace lockstep {
namespace {

using Texts = std::vector<std::string>;

/// The part of a view that is printed: all elements of a short axis; the first and the last edge_items elements of a
/// long axis.
class Window {
 public:
  Window(const Shape& shape, const PrintOptions& options) : edge_(options.edge_items), shown_(shape) {
    if (shape.numel() <= options.threshold) {
      return;
    }
    for (int axis = 0; axis < shape.rank(); ++axis) {
      if ((shape[axis] - 1) / 2 >= edge_) {  // the axis is longer than its two edges
        shown_[axis] = 2 * edge_;
        cut_[static_cast<std::size_t>(axis)] = true;
      }
    }
  }
  [[nodiscard]] const Shape& shape() const { return shown_; }  ///< extents of the part that is shown
  /// Returns true if elements are left out before position `i` of `axis` in the shown part.
  [[nodiscard]] bool gap_before(int axis, std::int64_t i) const {
    return cut_[static_cast<std::size_t>(axis)] && i == edge_;
  }

  /// Copies the shown part of `from` into `to`; calls itself for each axis from `axis` on.
  void copy_shown(Context& context, const TensorView& from, const TensorView& to, int axis = 0) const {
    if (axis == from.shape.rank()) {
      copy(context, from, to);
    } else if (cut_[static_cast<std::size_t>(axis)]) {
      const std::int64_t extent = from.shape[axis];
      copy_shown(context, from.slice(axis, 0, edge_), to.slice(axis, 0, edge_), axis + 1);
      copy_shown(context, from.slice(axis, extent - edge_, extent), to.slice(axis, edge_, 2 * edge_), axis + 1);
    } else {
      copy_shown(context, from, to, axis + 1);
    }
  }

 private:
  std::int64_t edge_;
  Shape shown_;
  std::array<bool, Dims::kMaxRank> cut_{};
};

enum class Form : unsigned char { whole, fixed, scientific };

Form form_of(const std::vector<double>& values) {
  double smallest = std::numeric_limits<double>::infinity();
  double largest = 0;
  bool whole = true;
  for (const double value : values) {
    const double size = std::abs(value);
    if (!std::isfinite(value) || size == 0) {
      continue;
    }
    smallest = std::min(smallest, size);
    largest = std::max(largest, size);
    whole = whole && std::trunc(value) == value;
  }
  if (largest >= 1e8 || (!whole && (smallest < 1e-4 || largest / smallest > 1000))) {
    return Form::scientific;
  }
  return whole ? Form::whole : Form::fixed;
}

std::string text_of(double value, Form form, int precision) {
  if (!std::isfinite(value)) {
    return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
  }
  // 64 characters are enough: `value` is below 1e8 or written with an exponent, and has at most 17 digits after the
  // point.
  std::array<char, 64> text{};
  const auto format = form == Form::scientific ? std::chars_format::scientific : std::chars_format::fixed;
  const auto end =
      std::to_chars(text.data(), text.data() + text.size(), value, format, form == Form::whole ? 0 : precision).ptr;
  return std::string(text.data(), end) + (form == Form::whole ? "." : "");
}

/// Formats all elements of `view`, a contiguous host view, so that all texts have the same width.
Texts texts_of(const TensorView& view, int precision) {
  Texts texts;
  texts.reserve(static_cast<std::size_t>(view.numel()));
  visit_dtype(view.dtype, [&]<class T>(std::type_identity<T>) {
    if constexpr (std::is_integral_v<T>) {
      for (const T value : view.span<T>()) {
        texts.push_back(std::to_string(value));
      }
    } else {
      std::vector<double> values;
      values.reserve(texts.capacity());
      for (const T value : view.span<T>()) {
        if constexpr (std::is_same_v<T, double>) {
          values.push_back(value);
        } else {
          values.push_back(static_cast<double>(static_cast<float>(value)));
        }
      }
      const Form form = form_of(values);
      for (const double value : values) {
        texts.push_back(text_of(value, form, precision));
      }
    }
  });
  std::size_t width = 0;
  for (const std::string& text : texts) {
    width = std::max(width, text.size());
  }
  for (std::string& text : texts) {
    text.insert(0, width - text.size(), ' ');
  }
  return texts;
}

class Writer {
 public:
  Writer(const Window& window, const Texts& texts, int line_width)
      : window_(window), rank_(window.shape().rank()), texts_(texts), line_width_(line_width) {}

  [[nodiscard]] std::string write() {
    write_axis(0);
    return std::move(out_);
  }

 private:
  void write_axis(int axis) {
    if (axis == rank_) {
      out_ += texts_[next_++];
      return;
    }
    const bool last = axis == rank_ - 1;
    // A new line separates rows; one more empty line separates matrices, and so on. Then comes one space for each open
    // bracket.
    const std::string separator = last ? ", "
                                       : "," + std::string(static_cast<std::size_t>(rank_ - 1 - axis), '\n') +
                                             std::string(static_cast<std::size_t>(axis + 1), ' ');
    out_ += '[';
    for (std::int64_t i = 0; i < window_.shape()[axis]; ++i) {
      if (i > 0) {
        out_ += separator;
      }
      if (window_.gap_before(axis, i)) {
        out_ += "...";
        out_ += separator;
      }
      if (last) {
        wrap(axis);
      }
      write_axis(axis + 1);
    }
    out_ += ']';
  }

  /// Begins a new line if the next element and its comma would exceed the line's width.
  void wrap(int axis) {
    const std::size_t line = out_.rfind('\n') + 1;  // correct also without a new line, because npos + 1 is 0
    const std::size_t indent = static_cast<std::size_t>(axis) + 1;
    if (out_.size() - line > indent && out_.size() - line + texts_[next_].size() + 1 > line_width_) {
      out_.pop_back();  // removes the space at the end of the separator
      out_ += '\n';
      out_.append(indent, ' ');
    }
  }

  const Window& window_;
  const int rank_;
  const Texts& texts_;
  const std::size_t line_width_;
  std::size_t next_ = 0;
  std::string out_;
};

}  // namespace

std::string to_string(Context& context, const TensorView& view, const PrintOptions& options) {
  require<UsageError>(options.precision >= 0 && options.precision <= 17, "to_string: precision is ", options.precision,
                      ", expected 0 to 17");
  require<UsageError>(options.edge_items >= 1 && options.threshold >= 0 && options.line_width >= 1,
                      "to_string: edge items are ", options.edge_items, ", the threshold ", options.threshold,
                      ", the line width ", options.line_width, ", expected at least 1, 0 and 1");
  require<DeviceError>(view.device == context.device(), "to_string: the tensor is on ", view.device,
                       ", the context on ", context.device(), ", expected both on one device");
  if (view.numel() == 0) {
    return concat("[] ", view);
  }
  require<ShapeError>(view.data != nullptr, "to_string: tensor ", view, " has no memory, expected a view of memory");
  const SyncScope scope(context.stream(), "to_string", SyncReason::host_data);
  const Window window(view.shape, options);
  CpuContext host;
  const Tensor shown = Tensor::empty(host, window.shape(), view.dtype);
  window.copy_shown(context, view, shown);
  context.synchronize();
  const Texts texts = texts_of(shown, options.precision);
  return concat(Writer(window, texts, options.line_width).write(), ' ', view);
}

}  // namespace lockstep
