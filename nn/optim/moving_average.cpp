#include <lockstep/nn/optim/moving_average.hpp>

#include <algorithm>
#include <cmath>

#include <lockstep/kernels/strided_copy.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/schema.hpp>
#include <lockstep/runtime/base/units.hpp>

namespace lockstep::nn {

namespace {

constexpr const char* kAverage = "weight_average";
constexpr const char* kStatistics = "statistics of the average";
constexpr const char* kMean = "averaged statistics of the average";

}  // namespace

double MovingAverageOptions::weight(std::int64_t update, std::int64_t scheduled) const {
  if (!on() || update < 1 || (update - 1) % every != 0) {
    return 0;
  }
  // Number of averagings since the last averaging that copied the weights (copied_updates). If this number is 0 or
  // less, the present averaging copies the weights.
  const std::int64_t behind = (scheduled - 1 - copied_updates) / every;
  if (behind <= 0) {
    return 1;
  }
  return 1 - (ramp ? std::min(decay, 1 - std::pow(1 + static_cast<double>(behind), -2.0 / 3)) : decay);
}

void require_moving_average(const MovingAverageOptions& options) {
  require<UsageError>(options.decay >= 0 && options.decay < 1, "moving average: the decay is ", options.decay,
                      ", expected 0 <= value < 1");
  require<UsageError>(options.every >= 1, "moving average: every is ", options.every, ", expected at least 1");
  require<UsageError>(options.copied_updates >= 0, "moving average: copied_updates is ", options.copied_updates,
                      ", expected at least 0");
}

std::string text_of(const MovingAverageOptions& options) {
  return concat(exact_text(options.decay), options.every > 1 ? concat(" every ", options.every) : std::string(),
                options.copied_updates > 0 ? concat(", copied for ", options.copied_updates) : std::string(),
                options.ramp ? ", ramp" : "");
}

void add_average(Context& context, ParameterSet& parameters) {
  const auto copied_from = [](const TensorView& source) {
    return [source](Context& c, const TensorView& state) {
      if (source.numel() > 0) {
        ops::strided_copy(c, source, state);
      }
    };
  };
  const auto weights = [values = parameters.values(), pieces = parameters.state_pieces()](Context& c,
                                                                                          const TensorView& state) {
    std::int64_t offset = 0;  // index in `state`, which holds this rank's pieces one after the other
    for (const auto& [begin, end] : pieces) {
      ops::strided_copy(c, values.slice(0, begin, end), state.slice(0, offset, offset + end - begin));
      offset += end - begin;
    }
  };
  const auto like = [](TensorView view) {
    view.data = nullptr;
    return view;
  };
  const TensorView statistics = parameters.statistics();
  const TensorView mean = parameters.evaluation_buffer_arena();
  parameters.add(
      context,
      {.name = kAverage, .view = {}, .sharing = Sharing::shard, .file = StateFile::average, .follow = weights});
  parameters.add(context, {.name = kStatistics,
                           .view = like(statistics),
                           .sharing = Sharing::of_rank,
                           .file = StateFile::average,
                           .saved_as = "rank_buffers_ema",
                           .mean = kMean,
                           .follow = copied_from(statistics)});
  parameters.add(context, {.name = kMean,
                           .view = like(mean),
                           .layout = StateLayout::buffers,
                           .file = StateFile::average,
                           .follow = copied_from(mean)});
}

MovingAverage average_of(const ParameterSet& parameters) {
  const StateRegistry& states = parameters.states();
  return {.weights = states.view(kAverage), .statistics = states.view(kStatistics), .buffers = states.view(kMean)};
}

void describe(Schema& schema, MovingAverageOptions& options) {
  schema.group("Training");
  schema
      .add("ema", options.decay,
           "decay of a moving average of the weights; the average is evaluated and saved beside the weights; 0: no "
           "average")
      .fraction()
      .is_common();
  schema.add("ema_every", options.every, "updates from one averaging to the next, counted over the whole run")
      .at_least(1);
  schema
      .add("ema_warmup", options.copied_updates,
           "updates at the start of the run in which each averaging copies the weights; the first averaging after "
           "these updates copies, too; -1: the updates of the warm-up")
      .at_least(-1);
  schema.add("ema_ramp", options.ramp,
             "let the decay grow to --ema after the copies of --ema-warmup; the n-th averaging has a decay of at most "
             "1 - (1 + n)^(-2/3)");
}

}  // namespace lockstep::nn
