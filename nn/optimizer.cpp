#include <lockstep/nn/optimizer.hpp>

namespace lockstep::nn {

Sgd::Sgd(Context& context, ParameterSet& parameters, const ops::SgdOptions& options)
    : parameters_(parameters), options_(options) {
  require<UsageError>(options.momentum >= 0 && options.momentum < 1, "momentum is ", options.momentum,
                      ", expected 0 <= momentum < 1");
  require<UsageError>(!options.nesterov || options.momentum > 0, "Nesterov needs a momentum above 0");
  if (options.momentum > 0) {
    momentum_ = parameters.add_state(context, "momentum_buffer");
  }
}

void Sgd::update(Context& context, const TensorView& learning_rate, std::int64_t begin, std::int64_t end) {
  ops::sgd_update(context, options_,
                  {.segments = parameters_.segments(),
                   .begin = begin,
                   .learning_rate = learning_rate,
                   .parameters = parameters_.values().slice(0, begin, end),
                   .gradients = parameters_.gradients().slice(0, begin, end)},
                  momentum_.given() ? momentum_.slice(0, begin, end) : TensorView{});
}

}  // namespace lockstep::nn
