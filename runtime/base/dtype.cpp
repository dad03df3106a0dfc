#include <lockstep/runtime/base/dtype.hpp>

#include <array>
#include <ostream>

namespace lockstep {
namespace {

struct Entry {
  DType dtype;
  std::string_view name;
  std::size_t size;
  bool floating;
};
constexpr std::array<Entry, 8> kTable{{{DType::f32, "f32", 4, true},
                                       {DType::f64, "f64", 8, true},
                                       {DType::bf16, "bf16", 2, true},
                                       {DType::f16, "f16", 2, true},
                                       {DType::u8, "u8", 1, false},
                                       {DType::i32, "i32", 4, false},
                                       {DType::i64, "i64", 8, false},
                                       {DType::u64, "u64", 8, false}}};

const Entry& entry(DType dtype) {
  const auto index = static_cast<std::size_t>(dtype);
  require<DTypeError>(index < kTable.size(), "dtype: the number is ", index, ", expected one of the ", kTable.size(),
                      " types");
  return kTable[index];
}

}  // namespace

std::size_t size_of(DType dtype) {
  return entry(dtype).size;
}
std::string_view name_of(DType dtype) {
  return entry(dtype).name;
}
bool is_floating(DType dtype) {
  return entry(dtype).floating;
}

DType parse_dtype(std::string_view text) {
  for (const Entry& e : kTable) {
    if (e.name == text) {
      return e.dtype;
    }
  }
  throw UsageError(concat("dtype is '", text, "', expected f32, f64, bf16, f16, u8, i32, i64 or u64"));
}

std::ostream& operator<<(std::ostream& out, DType dtype) {
  return out << name_of(dtype);
}

}  // namespace lockstep
