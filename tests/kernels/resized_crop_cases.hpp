#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <lockstep/kernels/images/resample.hpp>
#include <lockstep/kernels/resized_crop.hpp>

#include "tests/support/op_case.hpp"

namespace lockstep::testing {

/// A row of the op's table `parts`: the part of a picture that one image shows. black: the row is invalid or shows
/// nothing, so its image must be black.
struct CropRow {
  std::int64_t width = 1;
  std::int64_t height = 1;
  ops::images::Axis x;
  ops::images::Axis y;
  bool transposed = false;
  std::int64_t left = 0;
  std::int64_t top = 0;
  std::vector<std::pair<ops::PartColumn, double>> spoiled{};  ///< cells of the row that are replaced by another number
  bool black = false;
};

inline std::vector<double> cells_of(const CropRow& row) {
  std::vector<double> cells{static_cast<double>(row.width),
                            static_cast<double>(row.height),
                            static_cast<double>(row.left),
                            static_cast<double>(row.top),
                            row.transposed ? 1.0 : 0.0,
                            row.x.begin,
                            row.x.step,
                            static_cast<double>(row.x.low),
                            static_cast<double>(row.x.high),
                            row.y.begin,
                            row.y.step,
                            static_cast<double>(row.y.low),
                            static_cast<double>(row.y.high)};
  for (const auto& [column, value] : row.spoiled) {
    cells[static_cast<std::size_t>(column)] = value;
  }
  return cells;
}

/// Returns an axis that resizes pixels [low, high) to `size` pixels.
inline ops::images::Axis crop_axis(std::int64_t low, std::int64_t high, std::int64_t size) {
  return {static_cast<double>(low), static_cast<double>(high - low) / static_cast<double>(size), low, high};
}

struct ResizedCropParams {
  std::string name;
  std::int64_t height = 1;  ///< height of the images
  std::int64_t width = 1;
  std::vector<CropRow> rows;
  std::int64_t spare = 0;                   ///< number of unused bytes after the largest picture
  std::int64_t stride = ops::kPartColumns;  ///< row stride of the table; the gaps hold NaN
};

inline std::int64_t picture_bytes(const ResizedCropParams& p) {
  std::int64_t most = 0;
  for (const CropRow& row : p.rows) {
    most = std::max(most, row.width * row.height * 3);
  }
  return most + p.spare;
}

/// Makes a test case of resized_crop(). Inputs: pictures, parts; output: out.
inline OpCase resized_crop_case(const ResizedCropParams& p) {
  const auto samples = static_cast<std::int64_t>(p.rows.size());
  std::vector<double> table(static_cast<std::size_t>(samples * p.stride), std::numeric_limits<double>::quiet_NaN());
  double read = 0;
  for (std::size_t n = 0; n < p.rows.size(); ++n) {
    const CropRow& row = p.rows[n];
    const std::vector<double> cells = cells_of(row);
    std::copy(cells.begin(), cells.end(), table.begin() + static_cast<std::ptrdiff_t>(n) * p.stride);
    read += row.black ? 0 : static_cast<double>((row.x.high - row.x.low) * (row.y.high - row.y.low) * 3);
  }
  OpCase item;
  item.name = concat("resized_crop ", p.name, " to (", samples, ", ", p.height, ", ", p.width, ", 3)");
  item.dtype = DType::u8;
  item.inputs = {{"pictures", Shape{samples, picture_bytes(p)}, DType::u8, integers(1, 0, 255)},
                 {"parts", Shape{samples, p.stride}, DType::f64, values(table)}};
  item.outputs = {{"out", Shape{samples, p.height, p.width, 3}, DType::u8, {}}};
  item.run = [](Context& context, Views in, Views out, const TensorView&) {
    ops::resized_crop(context, in[0], in[1].slice(1, 0, ops::kPartColumns), out[0]);
  };
  item.bytes =
      read + static_cast<double>(table.size() * sizeof(double)) + static_cast<double>(samples * p.height * p.width * 3);
  return item;
}

/// Returns table rows at the limits of the contract. Some are valid; others are invalid in one cell. The pictures have
/// 7 x 5 pixels in memory for 8 x 5.
inline std::vector<CropRow> doubtful_rows() {
  using enum ops::PartColumn;
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const CropRow good{7, 5, crop_axis(1, 6, 4), crop_axis(0, 5, 3)};
  std::vector<CropRow> rows{{8, 5, crop_axis(0, 8, 4), crop_axis(0, 5, 3)}};
  const auto add = [&](bool black, ops::PartColumn column, const std::vector<double>& values) {
    for (const double value : values) {
      rows.push_back(good);
      rows.back().spoiled = {{column, value}};
      rows.back().black = black;
    }
  };
  add(false, width, {8.0});
  add(false, height, {5.0});
  add(false, left, {0.0, 1.0});
  add(false, transposed, {1.0});
  add(false, x_begin, {-2147483648.0});
  add(false, y_begin, {2147483648.0});
  add(false, x_step, {-7.0, 0.0});
  add(false, y_step, {5.0});
  add(false, x_low, {0.0, 5.0});
  add(false, x_high, {7.0, 8.0, 2.0});
  add(false, y_low, {4.0});
  add(false, y_high, {1.0});
  add(true, width, {0.0, -7.0, 7.5, 5.0, 9.0, 134217729.0, 1e300});
  add(true, height, {0.0, 4.0, 6.0, 1e18});
  add(true, left, {-1.0, 0.5, 2.0, 134217729.0});
  add(true, top, {-1.0, 1.0, 1e300});
  add(true, transposed, {0.5, 2.0, -1.0});
  add(true, x_begin, {-2147483649.0});
  add(true, y_begin, {2147483649.0});
  add(true, x_step, {-134217729.0, 134217729.0});
  add(true, y_step, {1e300});
  add(true, x_low, {-1.0, 6.0, 0.5});
  add(true, x_high, {1.0, 5.5, 134217729.0});
  add(true, y_low, {-1.0, 5.0});
  add(true, y_high, {6.0, 0.0});
  for (const ops::PartColumn column :
       {width, height, left, top, transposed, x_begin, x_step, x_low, x_high, y_begin, y_step, y_low, y_high}) {
    add(true, column, {kNan, kInfinity, -kInfinity});
  }
  rows.push_back(good);
  rows.back().black = true;
  rows.back().spoiled = {{width, 0}, {height, 0}, {left, 0},    {top, 0},    {transposed, 0}, {x_begin, 0}, {x_step, 0},
                         {x_low, 0}, {x_high, 0}, {y_begin, 0}, {y_step, 0}, {y_low, 0},      {y_high, 0}};
  return rows;
}

/// Returns parameters of test cases: images smaller and larger than the part of the picture; mirrored and transposed
/// parts; windows of a larger picture; parts at the picture's edges, of one pixel, of one column, and with step 0;
/// images of several tiles; more weights for one output than a kernel keeps; no sample, no pixel, no byte.
inline std::vector<ResizedCropParams> resized_crop_params() {
  constexpr std::int64_t kWidth = 37;
  constexpr std::int64_t kHeight = 23;
  std::vector<ResizedCropParams> all;
  for (const auto& [h, w] : {std::pair<std::int64_t, std::int64_t>{11, 13}, {1, 1}, {33, 32}, {40, 67}}) {
    ResizedCropParams p{"various", h, w, {}, 5, ops::kPartColumns + h % 3};
    for (const bool transposed : {false, true}) {
      const std::int64_t across = transposed ? h : w;
      const std::int64_t down = transposed ? w : h;
      const auto add = [&](const ops::images::Axis& x, const ops::images::Axis& y) {
        p.rows.push_back({kWidth, kHeight, x, y, transposed});
      };
      const ops::images::Axis whole_x = crop_axis(0, kWidth, across);
      const ops::images::Axis whole_y = crop_axis(0, kHeight, down);
      add(whole_x, whole_y);
      add(crop_axis(3, 8, across), crop_axis(20, 23, down));
      add({2.25, 0.25, 0, kWidth}, {1.5, 0.3, 0, kHeight});
      add(ops::images::mirrored(whole_x, kWidth), whole_y);
      add(whole_x, ops::images::mirrored(crop_axis(4, 11, down), kHeight));
      add(crop_axis(0, 1, across), whole_y);
      add(crop_axis(36, 37, across), crop_axis(22, 23, down));
      // x has step 0. Some outputs' positions in y are outside of the picture, and the op moves them to the edge.
      add({5.5, 0, 2, 9}, {-3, 0.75, 0, kHeight});
      p.rows.push_back({1, 1, crop_axis(0, 1, across), crop_axis(0, 1, down), transposed});
      p.rows.push_back({2, 9, crop_axis(0, 2, across), crop_axis(1, 8, down), transposed});
      // The pictures hold only a window of a larger picture.
      p.rows.push_back({6, 5, crop_axis(100, 106, across), crop_axis(40, 45, down), transposed, 100, 40});
      p.rows.push_back({6, 5, mirrored(crop_axis(3, 9, across), 20), crop_axis(40, 45, down), transposed, 11, 40});
      p.rows.push_back({});
      p.rows.back().spoiled = {{ops::PartColumn::width, 0.0}};
      p.rows.back().black = true;
    }
    all.push_back(std::move(p));
  }
  // The sums are multiples of 1/36, and many are halfway between two bytes. So the result depends on the rounding of
  // the sums.
  all.push_back({"middles between bytes",
                 20,
                 20,
                 {{120, 20, crop_axis(0, 120, 20), crop_axis(0, 20, 20)},
                  {20, 120, crop_axis(0, 20, 20), crop_axis(0, 120, 20)}}});
  // These test cases sum 64, 65 and more weights for one output.
  all.push_back({"long sums",
                 2,
                 1,
                 {{131, 70, crop_axis(0, 131, 1), crop_axis(0, 70, 2)},
                  {70, 131, crop_axis(0, 70, 2), crop_axis(0, 131, 1), true},
                  {150, 150, {28, 32, 0, 150}, {40.25, 32.25, 0, 150}},
                  {90, 80, ops::images::mirrored(crop_axis(0, 90, 1), 90), {0, 16, 0, 80}}}});
  all.push_back({"rows that show nothing", 3, 4, doubtful_rows()});
  all.push_back({"nothing", 3, 4, {}});
  const CropRow one{1, 1, {0, 1, 0, 1}, {0, 1, 0, 1}};
  all.push_back({"no row", 0, 4, {one}});
  all.push_back({"no column", 3, 0, {one}});
  CropRow empty = one;
  empty.width = 0;
  empty.black = true;
  all.push_back({"no byte", 3, 2, {empty, empty}});
  return all;
}

/// Returns the test cases for a GPU, which must give the same bytes as the host.
inline std::vector<DeviceCase> resized_crop_device_cases() {
  return same_cases(resized_crop_params(), resized_crop_case);
}

}  // namespace lockstep::testing
