#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include <gtest/gtest.h>

#include <lockstep/runtime/stream/stream.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>

#include "tests/comm/view_of.hpp"
#include "tests/support/guarded.hpp"

// Test data for communicators, and the memory that holds the data.

namespace lockstep::comm::cases {

/// Returns element i of a rank's test data, a small integer. Every type represents these integers and their sums over
/// five ranks exactly.
inline double number(DType dtype, int rank, std::int64_t i) {
  const auto value = static_cast<double>((rank * 37 + i * 11 + 5) % 97);
  return dtype == DType::u8 || dtype == DType::u64 ? value : value - 48;
}

/// The memory in which a test has its tensors. This class uses host memory. Derived classes use the memory of a GPU.
class Place {
 public:
  Place() = default;
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;
  virtual ~Place() = default;
  [[nodiscard]] virtual Device device() const { return Device::cpu(); }
  [[nodiscard]] virtual Device elsewhere() const { return Device::cuda(0); }
  /// upload() returns a tensor in this memory with the bytes of `image`. download() copies a tensor's bytes to `image`.
  /// Both functions wait until the copy is done.
  [[nodiscard]] virtual Tensor upload(std::span<const std::byte> /*image*/) const { return {}; }
  virtual void download(const Tensor& /*there*/, std::span<std::byte> /*image*/) const {}
  /// Enqueues an operation that adds 1 to an i64 tensor.
  virtual void add_one(Stream& stream, const TensorView& view) const {
    stream.enqueue([view] {
      for (std::int64_t& v : view.span<std::int64_t>()) {
        v += 1;
      }
    });
  }
};

inline const Place& host() {
  static const Place place;
  return place;
}

/// A tensor of n elements in guarded memory, either poisoned or with the given values.
class Data {
 public:
  Data(DType dtype, std::int64_t n) : Data(host(), dtype, n) {}
  template <class Value>
  Data(DType dtype, std::int64_t n, Value&& value) : Data(host(), dtype, n, std::forward<Value>(value)) {}
  Data(const Place& place, DType dtype, std::int64_t n)
      : Data(
            place, dtype, n, [](std::int64_t) { return 0; }, false) {}
  template <class Value>
  Data(const Place& place, DType dtype, std::int64_t n, Value&& value, bool assigned = true)
      : place_(place), tensor_(Shape{n}, dtype), view_(tensor_.view()) {
    std::vector<double> values;
    for (std::int64_t i = 0; i < n && assigned; ++i) {
      values.push_back(value(i));
    }
    if (assigned) {
      tensor_.assign(values);
    }
    if (place.device() != Device::cpu()) {
      there_ = place.upload(tensor_.image());
      const auto offset = static_cast<std::byte*>(view_.data) - tensor_.image().data();
      view_ = TensorView(static_cast<std::byte*>(there_.view().data) + offset, dtype, place.device(), Shape{n});
    }
  }
  [[nodiscard]] const TensorView& view() const { return view_; }
  /// Returns elements [index * n, (index + 1) * n).
  [[nodiscard]] TensorView part(int index, std::int64_t n) const { return view().slice(0, index * n, (index + 1) * n); }

  template <class Expected>
  void expect(const char* what, int rank, Expected&& expected) const {
    expect_in(what, rank, 0, view().numel(), expected);
  }
  /// Expects that each element i in [begin, end) is expected(i). All other elements may have any value.
  template <class Expected>
  void expect_in(const char* what, int rank, std::int64_t begin, std::int64_t end, Expected&& expected) const {
    place_.download(there_, tensor_.image());
    ASSERT_EQ(tensor_.check(), "") << what;
    const std::vector<double> values = tensor_.values();
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
      ASSERT_EQ(values[i], expected(static_cast<std::int64_t>(i)))
          << what << " of " << view() << ", rank " << rank << ": element " << i;
    }
  }

 private:
  const Place& place_;
  testing::GuardedTensor tensor_;
  Tensor there_;
  TensorView view_;
};

}  // namespace lockstep::comm::cases
