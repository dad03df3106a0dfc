#pragma once

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include <lockstep/kernels/strided_copy.hpp>

#include "tests/support/op_case.hpp"

namespace lockstep::testing {

/// Makes the source or target view of a copy from the complete tensor.
using MakeView = std::function<TensorView(const TensorView& tensor)>;

inline TensorView entire(const TensorView& tensor) {
  return tensor;
}

struct StridedCopyParams {
  std::string what;
  Shape src;  ///< shape of the tensor from which src_view makes the source
  MakeView src_view = entire;
  Shape dst;
  MakeView dst_view = entire;
  DType from = DType::f32;
  DType to = DType::f32;
};

/// Makes a test case of strided_copy(). Input: src; output: dst, which starts with random numbers, because the target
/// view may cover only a part of dst.
inline OpCase strided_copy_case(const StridedCopyParams& p) {
  const auto without_sign = [](DType t) { return t == DType::u8 || t == DType::u64; };
  const TensorView view = p.dst_view(TensorView(nullptr, p.to, Device::cpu(), p.dst));
  return {.name = concat("strided_copy ", p.what, ' ', p.from, " to ", p.to, ' ', p.src),
          .dtype = p.from,
          .inputs = {{"src", p.src, p.from, uniform(1, without_sign(p.from) || without_sign(p.to) ? 0 : -100, 100)}},
          .outputs = {{"dst", p.dst, p.to, uniform(2, 0, 100)}},
          .run = [=](Context& context, Views in, Views out,
                     const TensorView&) { ops::strided_copy(context, p.src_view(in[0]), p.dst_view(out[0])); },
          .bytes = static_cast<double>(view.numel()) * static_cast<double>(size_of(p.from) + size_of(p.to))};
}

inline StridedCopyParams permuted_copy(const Shape& src, std::initializer_list<int> axes, DType from, DType to) {
  const std::vector<int> order(axes);
  StridedCopyParams p{.what = "permuted", .src = src, .from = from, .to = to};
  for (const int axis : order) {
    p.what += concat(' ', axis);
    p.dst.push_back(src[axis]);
  }
  p.src_view = [order](const TensorView& tensor) {
    TensorView view = tensor;
    for (std::size_t i = 0; i < order.size(); ++i) {
      view.shape[static_cast<int>(i)] = tensor.shape[order[i]];
      view.strides[static_cast<int>(i)] = tensor.strides[order[i]];
    }
    return view;
  };
  return p;
}

inline StridedCopyParams cast_copy(const Shape& shape, DType from, DType to) {
  return {.what = "whole", .src = shape, .dst = shape, .from = from, .to = to};
}

/// Returns a MakeView. Its views have this shape and these strides, and begin at element `first` of the tensor.
inline MakeView strided(std::int64_t first, const Shape& shape, const Strides& strides) {
  return [=](const TensorView& tensor) {
    auto* data = static_cast<std::byte*>(tensor.data);
    if (data != nullptr) {
      data += first * static_cast<std::int64_t>(size_of(tensor.dtype));
    }
    return TensorView(data, tensor.dtype, tensor.device, shape, strides);
  };
}

inline MakeView sliced(int axis, std::int64_t begin, std::int64_t end) {
  return [=](const TensorView& tensor) { return tensor.slice(axis, begin, end); };
}

/// Returns parameters of copies with every kind of strides: no element, one element, complete tensors, rows that are no
/// multiple of 16 bytes, transposed planes with full and partial tiles, slices, padding, reversed axes, every second
/// element, broadcasts, and rank 8.
inline std::vector<StridedCopyParams> strided_copies(DType from, DType to) {
  std::vector<StridedCopyParams> all;
  for (const Shape& shape : {Shape{}, Shape{1}, Shape{0, 3}, Shape{37}, Shape{5, 7, 61}}) {
    all.push_back(cast_copy(shape, from, to));
  }
  all.push_back(permuted_copy({64, 96}, {1, 0}, from, to));
  all.push_back(permuted_copy({33, 65}, {1, 0}, from, to));
  all.push_back(permuted_copy({17, 7}, {1, 0}, from, to));
  all.push_back(permuted_copy({2, 4, 32, 16}, {1, 3, 0, 2}, from, to));
  all.push_back(permuted_copy({3, 19, 2, 24}, {0, 2, 1, 3}, from, to));
  all.push_back(permuted_copy({2, 17, 2, 31}, {2, 3, 0, 1}, from, to));
  all.push_back(permuted_copy({2, 1, 3, 2, 2, 3, 1, 2}, {7, 3, 6, 1, 0, 5, 2, 4}, from, to));
  all.push_back({"rows", {9, 64}, sliced(0, 2, 7), {5, 64}, entire, from, to});
  all.push_back({"columns", {9, 64}, sliced(1, 16, 51), {9, 35}, entire, from, to});
  all.push_back({"into a padded tensor", {5, 35}, entire, {7, 48}, strided(48, {5, 35}, {48, 1}), from, to});
  all.push_back({"reversed", {6, 35}, strided(209, {6, 35}, {-35, -1}), {6, 35}, entire, from, to});
  all.push_back({"to every second", {6, 35}, entire, {6, 71}, strided(1, {6, 35}, {71, 2}), from, to});
  all.push_back({"to the end first", {4, 32}, entire, {4, 32}, strided(96, {4, 32}, {-32, 1}), from, to});
  all.push_back({"broadcast row", {35}, strided(0, {4, 35}, {0, 1}), {4, 35}, entire, from, to});
  all.push_back({"broadcast column", {20}, strided(0, {20, 19}, {1, 0}), {20, 19}, entire, from, to});
  return all;
}

inline constexpr std::pair<DType, DType> kMixedTypes[] = {
    {DType::f32, DType::i32}, {DType::f64, DType::u8},  {DType::bf16, DType::i64}, {DType::f16, DType::u64},
    {DType::u8, DType::f16},  {DType::i32, DType::f64}, {DType::i64, DType::bf16}, {DType::u64, DType::i32},
    {DType::i64, DType::f32}, {DType::i32, DType::u8}};

inline constexpr DType kFloatingTypes[] = {DType::f32, DType::f64, DType::bf16, DType::f16};

inline std::vector<StridedCopyParams> all_strided_copies() {
  std::vector<StridedCopyParams> all;
  const auto add = [&](std::vector<StridedCopyParams> more) { all.insert(all.end(), more.begin(), more.end()); };
  for (const DType dtype : {DType::u8, DType::bf16, DType::f32, DType::i64}) {  // one type for each element size
    add(strided_copies(dtype, dtype));
  }
  add(strided_copies(DType::f32, DType::bf16));
  add(strided_copies(DType::u8, DType::f32));
  for (const DType from : kFloatingTypes) {
    for (const DType to : kFloatingTypes) {
      add({cast_copy({3, 41}, from, to), permuted_copy({18, 33}, {1, 0}, from, to)});
    }
  }
  for (const auto& [from, to] : kMixedTypes) {
    add({cast_copy({3, 41}, from, to), permuted_copy({18, 33}, {1, 0}, from, to)});
  }
  return all;
}

/// Returns the test cases for a GPU. The host copies every type, too, and must give the same bits.
inline std::vector<DeviceCase> strided_copy_device_cases() {
  return same_cases(all_strided_copies(), strided_copy_case);
}

}  // namespace lockstep::testing
