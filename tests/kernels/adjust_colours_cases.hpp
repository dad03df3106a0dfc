#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include <lockstep/kernels/adjust_colours.hpp>
#include <lockstep/runtime/base/random.hpp>

#include "tests/support/op_case.hpp"

namespace lockstep::testing {

/// Changes of one image, at most four. Each change is a pair of kind and factor.
using ColourList = std::vector<std::pair<double, double>>;

inline std::pair<double, double> colour_change(ops::ColourKind kind, double factor) {
  return {static_cast<double>(kind), factor};
}

struct AdjustColoursParams {
  Shape images;                   ///< shape (N, H, W, 3)
  std::vector<ColourList> lists;  ///< changes of image n: lists[n % lists.size()]
  std::int64_t gap = 0;           ///< unused numbers after each row of the table
  std::string name;
};

/// Returns the table of changes, of shape (N, kColourColumns + gap). The gap holds ones: an op that read the gap would
/// apply a change and give a wrong result.
inline std::vector<double> colour_table(const AdjustColoursParams& p) {
  const auto columns = static_cast<std::size_t>(ops::kColourColumns + p.gap);
  std::vector<double> table(static_cast<std::size_t>(p.images[0]) * columns, 1);
  for (std::size_t n = 0; n < static_cast<std::size_t>(p.images[0]); ++n) {
    const ColourList& list = p.lists[n % p.lists.size()];
    std::fill_n(table.begin() + static_cast<std::ptrdiff_t>(n * columns), ops::kColourColumns, 0.0);
    for (std::size_t i = 0; i < list.size(); ++i) {
      table[n * columns + 2 * i] = list[i].first;
      table[n * columns + 2 * i + 1] = list[i].second;
    }
  }
  return table;
}

/// Makes a test case of adjust_colours(). Input: changes; output: images, which are changed in place.
inline OpCase adjust_colours_case(const AdjustColoursParams& p) {
  const std::int64_t samples = p.images[0];
  return {.name = concat("adjust_colours ", p.images, ' ', p.name),
          .dtype = DType::u8,
          .inputs = {{"changes", Shape{samples, ops::kColourColumns + p.gap}, DType::f64, values(colour_table(p))}},
          .outputs = {{"images", p.images, DType::u8, integers(1, 0, 255)}},
          .run =
              [=](Context& context, Views in, Views out, const TensorView& workspace) {
                ops::adjust_colours(context, out[0], in[0].slice(1, 0, ops::kColourColumns),
                                    TensorView(workspace.data, DType::i64, workspace.device, Shape{samples}));
              },
          .workspace_bytes = [=](Context&) { return static_cast<std::size_t>(samples) * 8; },
          .bytes = 2 * static_cast<double>(p.images.numel())};
}

/// Returns 24 lists: the four kinds of changes in every order.
inline std::vector<ColourList> colour_orders(double strength) {
  ColourList list{
      colour_change(ops::ColourKind::brightness, strength), colour_change(ops::ColourKind::contrast, 2.1 - strength),
      colour_change(ops::ColourKind::saturation, 1.9 * strength), colour_change(ops::ColourKind::hue, strength - 1.1)};
  std::vector<ColourList> all;
  do {
    all.push_back(list);
  } while (std::next_permutation(list.begin(), list.end()));
  return all;
}

/// Returns `count` lists of up to four random changes. Some entries are of kind 0, which means no change.
inline std::vector<ColourList> random_colour_lists(std::uint64_t seed, std::size_t count) {
  Random random(seed, RandomUse::test);
  std::vector<ColourList> lists(count);
  for (ColourList& list : lists) {
    list.resize(random.below(5));
    for (auto& [kind, factor] : list) {
      kind = random.below(5);
      const bool hue = kind == static_cast<double>(ops::ColourKind::hue);
      factor = hue ? random.uniform() - 0.5 : 2 * random.uniform();
    }
  }
  return lists;
}

/// Returns parameters of test cases: images of one pixel; images whose number of pixels is a multiple of 4, 16 or 256;
/// images of other sizes, so that images begin at any distance from a 16-byte boundary; images of several tiles; more
/// tiles than the emulated GPU has blocks; no image; no pixel; no change.
inline std::vector<AdjustColoursParams> adjust_colours_params() {
  std::vector<AdjustColoursParams> all;
  all.push_back({Shape{24, 5, 7, 3}, colour_orders(0.7), 0, "all orders"});
  all.push_back({Shape{24, 4, 8, 3}, colour_orders(1.4), 3, "all orders"});
  all.push_back({Shape{2, 61, 83, 3}, {colour_orders(0.8)[5], colour_orders(1.2)[20]}, 1, "three tiles"});
  all.push_back({Shape{9, 45, 47, 3}, random_colour_lists(3, 9), 0, "random lists"});
  all.push_back({Shape{3, 64, 64, 3}, random_colour_lists(4, 3), 1, "random lists"});
  std::uint64_t seed = 10;
  for (const Shape& shape : {Shape{37, 1, 1, 3}, Shape{33, 2, 1, 3}, Shape{17, 4, 4, 3}, Shape{19, 16, 1, 3},
                             Shape{18, 3, 5, 3}, Shape{17, 1, 31, 3}, Shape{7, 16, 16, 3}, Shape{5, 257, 1, 3}}) {
    all.push_back({shape, random_colour_lists(seed, 40), static_cast<std::int64_t>(seed % 3), "random lists"});
    ++seed;
  }
  all.push_back({Shape{3, 6, 7, 3}, {{}}, 0, "no change"});
  all.push_back({Shape{0, 6, 7, 3}, {{}}, 0, ""});
  all.push_back({Shape{5, 0, 7, 3}, colour_orders(0.7), 0, ""});
  return all;
}

inline std::vector<DeviceCase> adjust_colours_device_cases() {
  return same_cases(adjust_colours_params(), adjust_colours_case);
}

}  // namespace lockstep::testing
