#include <lockstep/nn/precision.hpp>

#include <array>

#include <lockstep/runtime/error.hpp>

namespace lockstep::nn {

namespace {

struct Name {
  std::string_view text;
  Precision precision;
};

// The first name of each is what name_of() says.
constexpr std::array<Name, 7> kNames{{{"fp32", {DType::f32, false}},
                                      {"f32", {DType::f32, false}},
                                      {"tf32", {DType::f32, true}},
                                      {"bf16", {DType::bf16, false}},
                                      {"fp16", {DType::f16, false}},
                                      {"f16", {DType::f16, false}},
                                      {"f64", {DType::f64, false}}}};

}  // namespace

Precision parse_precision(std::string_view name) {
  for (const Name& known : kNames) {
    if (known.text == name) {
      return known.precision;
    }
  }
  throw UsageError(concat("the data type is '", name, "', expected fp32, tf32, bf16, fp16 or f64"));
}

std::string_view name_of(Precision precision) {
  for (const Name& known : kNames) {
    if (known.precision == precision) {
      return known.text;
    }
  }
  throw UsageError(concat("there is no computing in ", precision.dtype, precision.tf32 ? " with tf32" : ""));
}

}  // namespace lockstep::nn
