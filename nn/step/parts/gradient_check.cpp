#include <lockstep/nn/step/parts/gradient_check.hpp>

#include <algorithm>
#include <cmath>

#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/kernels/fill.hpp>
#include <lockstep/kernels/reduce.hpp>
#include <lockstep/runtime/base/align.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/tensor/copy.hpp>

namespace lockstep::nn {

GradientCheck::GradientCheck(Context& context, const ParameterSet& parameters, const TensorView& norm,
                             MemoryResource& host)
    : parameters_(parameters),
      norm_(norm),
      inline_stream_(Stream::host_inline()),
      flags_(parameters.trainable().size() * sizeof(std::int32_t), context),
      stride_(align_up(sizeof(double) + flags_.bytes(), kAlignment)),
      left_(parameters.trainable().size()) {
  host_ = Buffer(static_cast<std::size_t>(kStepsKept) * stride_, host, inline_stream_);
}

TensorView GradientCheck::flags() const {
  return {flags_.data(), DType::i32, flags_.device(), {static_cast<std::int64_t>(left_.size())}};
}

std::byte* GradientCheck::kept(std::int64_t step) const {
  return host_.data() + static_cast<std::size_t>(step % kStepsKept) * stride_;
}

void GradientCheck::begin(Context& context) {
  const auto infos = parameters_.trainable();
  std::transform(infos.begin(), infos.end(), left_.begin(), [](const ParameterInfo& info) { return info.writes; });
  if (!left_.empty()) {
    ops::fill(context, 0, flags());
  }
}

void GradientCheck::written(Context& context, int parameter) {
  if (--left_[static_cast<std::size_t>(parameter)] == 0) {
    ops::all_finite(context, parameters_.gradient(parameter), flags().slice(0, parameter, parameter + 1).reshape({}));
  }
}

void GradientCheck::keep(Context& context, std::int64_t step) {
  std::byte* to = kept(step);
  copy(context, norm_, TensorView(to, DType::f64, Device::cpu(), Shape{}));
  if (const TensorView from = flags(); from.numel() > 0) {
    copy(context, from, TensorView(to + sizeof(double), DType::i32, Device::cpu(), from.shape));
  }
}

bool GradientCheck::finite(std::int64_t step) const {
  return std::isfinite(*reinterpret_cast<const double*>(kept(step)));
}

std::string GradientCheck::text(std::int64_t step, comm::Communicator& control) const {
  const std::span<const std::int32_t> flags(reinterpret_cast<const std::int32_t*>(kept(step) + sizeof(double)),
                                            left_.size());
  const auto found = std::find_if(flags.begin(), flags.end(), [](std::int32_t flag) { return flag != 0; });
  const auto count = std::count_if(flags.begin(), flags.end(), [](std::int32_t flag) { return flag != 0; });
  const std::vector<double> first = comm::all_gather_value(control, static_cast<double>(found - flags.begin()));
  const std::vector<double> counts = comm::all_gather_value(control, static_cast<double>(count));
  constexpr int kNamed = 4;
  std::string text;
  int ranks = 0;
  for (std::size_t rank = 0; rank < counts.size(); ++rank) {
    if (counts[rank] == 0 || ++ranks > kNamed) {
      continue;
    }
    const ParameterInfo& info = parameters_.trainable()[static_cast<std::size_t>(first[rank])];
    text += concat(ranks > 1 ? "; " : "", "rank ", rank, ": ", info.spec.name,
                   counts[rank] > 1 ? concat(" and ", counts[rank] - 1, " written after it") : std::string());
  }
  return ranks == 0        ? "those of each rank are, their sum over the ranks is not"
         : ranks <= kNamed ? text
                           : concat(text, "; ", ranks - kNamed, ranks == kNamed + 1 ? " rank more" : " ranks more");
}

}  // namespace lockstep::nn
