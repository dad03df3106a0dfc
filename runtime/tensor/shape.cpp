#include <lockstep/runtime/tensor/shape.hpp>

#include <ostream>

namespace lockstep {

Dims::Dims(std::span<const std::int64_t> values) {
  require<ShapeError>(values.size() <= static_cast<std::size_t>(kMaxRank), "rank is ", values.size(),
                      ", expected at most ", kMaxRank);
  rank_ = static_cast<int>(values.size());
  std::copy(values.begin(), values.end(), values_.begin());
}

void Dims::push_back(std::int64_t value) {
  require<ShapeError>(rank_ < kMaxRank, "an axis of ", value, " is added to a shape of rank ", kMaxRank,
                      ", expected at most ", kMaxRank, " axes");
  values_[static_cast<std::size_t>(rank_++)] = value;
}

std::int64_t Dims::numel() const {
  bool empty = false;
  for (const std::int64_t extent : *this) {
    require<ShapeError>(extent >= 0, "shape ", *this, ": extent is ", extent, ", expected at least 0");
    empty = empty || extent == 0;
  }
  if (empty) {
    return 0;
  }
  std::int64_t product = 1;
  for (const std::int64_t extent : *this) {
    require<ShapeError>(!__builtin_mul_overflow(product, extent, &product), "shape ", *this,
                        ": has too many elements, expected at most 2^63 - 1");
  }
  return product;
}

Strides contiguous_strides(const Shape& shape) {
  Strides strides = shape;
  std::int64_t stride = 1;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    strides[axis] = stride;
    require<ShapeError>(!__builtin_mul_overflow(stride, std::max<std::int64_t>(shape[axis], 1), &stride), "shape ",
                        shape, ": strides pass 2^63 - 1, expected smaller extents");
  }
  return strides;
}

std::ostream& operator<<(std::ostream& out, const Dims& dims) {
  out << '(';
  const char* separator = "";
  for (const std::int64_t value : dims) {
    out << separator << value;
    separator = ", ";
  }
  return out << ')';
}

}  // namespace lockstep
