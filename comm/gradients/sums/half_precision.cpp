#include <lockstep/comm/gradients/sums/detail/kinds.hpp>

namespace lockstep::comm {
namespace {

/// Returns options to send in 16 bits and add in rank order, in f32 (on hosts f64); nullopt if there is an argument.
template <DType dtype>
std::optional<SumOptions> options_of(std::string_view argument) {
  return argument.empty() ? std::optional(SumOptions{.dtype = dtype, .order = SumOrder::ranks}) : std::nullopt;
}

}  // namespace

NamedSum bf16_sum() {
  return {.name = "bf16",
          .argument = "",
          .expected = "bf16",
          .help = "bf16, fp16: gradients are sent in 16 bits and added in fp32",
          .options = options_of<DType::bf16>};
}

NamedSum fp16_sum() {
  return {.name = "fp16", .argument = "", .expected = "fp16", .help = "", .options = options_of<DType::f16>};
}

}  // namespace lockstep::comm
