#include <lockstep/nn/plan/precision.hpp>

#include <array>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep::nn {

namespace {

struct Name {
  std::string_view text;
  Precision precision;
};

// If a Precision has several names, name_of() returns the first one.
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
  throw UsageError(concat("there is no precision of ", precision.dtype, precision.tf32 ? " with tf32" : "",
                          ", expected fp32, tf32, bf16, fp16 or f64"));
}

void require_computed_on(Device device, DType dtype) {
  const bool on_host = device.kind == DeviceKind::cpu;
  require<UsageError>(dtype != DType::f16 || !on_host, "plan: dtype is f16 on ", device,
                      ", expected f32, bf16 or f64 there, or a GPU");
  require<UsageError>(dtype != DType::f64 || on_host, "plan: dtype is f64 on ", device,
                      ", expected f32, bf16 or f16 there, or the host");
}

}  // namespace lockstep::nn
