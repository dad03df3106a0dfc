#pragma once

#include <string>
#include <vector>

#include <lockstep/kernels/grouped_copy.hpp>

#include "tests/support/op_case.hpp"

namespace lockstep::testing {

/// Shape and type of a source and its target.
struct GroupedPair {
  Shape shape;
  DType dtype;
};

/// Makes a test case of grouped_copy(). Inputs: the sources; outputs: the targets. Each call fills the list of pairs
/// again. The list must outlive the asynchronous call, so it lives as long as the test case.
inline OpCase grouped_copy_case(const std::string& what, const std::vector<GroupedPair>& group) {
  OpCase item;
  item.name = concat("grouped_copy ", what, " of ", group.size());
  item.dtype = group.empty() ? DType::f32 : group.front().dtype;
  for (std::size_t i = 0; i < group.size(); ++i) {
    const std::string number = std::to_string(i);
    item.inputs.push_back({"src" + number, group[i].shape, group[i].dtype, uniform(i + 1, 0, 100)});
    item.outputs.push_back({"dst" + number, group[i].shape, group[i].dtype, {}});
  }
  const auto pairs = std::make_shared<std::vector<ops::CopyPair>>();
  item.run = [pairs](Context& context, Views in, Views out, const TensorView&) {
    pairs->clear();
    for (std::size_t i = 0; i < in.size(); ++i) {
      pairs->push_back({in[i], out[i]});
    }
    ops::grouped_copy(context, *pairs);
  };
  return item;
}

/// Returns test cases: no pair; an empty pair among others; every type; sizes that are no multiple of 16 bytes; chunks
/// of 16 KiB, one byte less and one byte more; more than 80 pairs, which is the most that a kernel's table holds.
inline std::vector<OpCase> grouped_copy_cases() {
  std::vector<OpCase> items;
  items.push_back(grouped_copy_case("nothing", {}));
  items.push_back(grouped_copy_case("empty", {{{0, 3}, DType::f32}}));
  items.push_back(grouped_copy_case("every type", {{{3, 5}, DType::f32},
                                                   {{0}, DType::u8},
                                                   {{7}, DType::f64},
                                                   {{33}, DType::bf16},
                                                   {{}, DType::f16},
                                                   {{61}, DType::u8},
                                                   {{2, 2}, DType::i32},
                                                   {{9}, DType::i64},
                                                   {{1}, DType::u64}}));
  items.push_back(grouped_copy_case(
      "chunks", {{{16384}, DType::u8}, {{16383}, DType::u8}, {{16385}, DType::u8}, {{4097}, DType::f32}}));
  items.push_back(grouped_copy_case("one", {{{5, 7, 61}, DType::f32}}));
  std::vector<GroupedPair> many;
  for (std::int64_t i = 0; i < 83; ++i) {
    many.push_back({Shape{i % 11}, DType::f32});
  }
  items.push_back(grouped_copy_case("many small ones", many));
  many.clear();
  for (std::int64_t i = 0; i < 81; ++i) {
    many.push_back({Shape{i % 5 + 1}, DType::bf16});
  }
  items.push_back(grouped_copy_case("one more than a table", many));
  return items;
}

/// Returns the test cases for a GPU. The host copies every type, too, and must give the same bits.
inline std::vector<DeviceCase> grouped_copy_device_cases() {
  return same_cases(grouped_copy_cases());
}

}  // namespace lockstep::testing
