#include "measure/measure.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

#include <lockstep/comm/local/local_communicator.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::measure {
namespace {

constexpr std::int64_t kMaxCalls = 1000000;  // most calls timed together for one value
constexpr double kShortest = 1e-9;           // seconds of a sample for which the clock shows 0

template <class T>
TensorView view_of(std::vector<T>& values) {
  return {std::span<T>(values), Shape{static_cast<std::int64_t>(values.size())}};
}

class Measure {
 public:
  Measure(comm::Communicator& ranks, const MeasureOptions& options, const Work& work)
      : ranks_(ranks), options_(options), work_(work) {}

  Samples run() {
    sample(1);  // warm-up
    find_calls();
    std::vector<double> mine;
    if (options_.calls > 0) {
      const std::int64_t all = agreed(options_.calls);
      const std::int64_t values = std::max<std::int64_t>(all / calls_, 1);
      calls_ = all / values;
      for (std::int64_t i = 0; i < values; ++i) {
        mine.push_back(value(all * (i + 1) / values - all * i / values));
      }
      return gather(mine);
    }
    const Clock::time_point begin = Clock::now();
    for (std::int64_t round = options_.min_iterations; round > 0;) {
      for (std::int64_t i = 0; i < round; ++i) {
        mine.push_back(value(calls_));
      }
      round = agreed(next_round(static_cast<std::int64_t>(mine.size()), seconds_since(begin)));
    }
    return gather(mine);
  }

 private:
  void prepare() {
    if (work_.prepare) {
      work_.prepare();
    }
    if (ranks_.size() > 1) {
      ranks_.barrier(inline_);
    }
  }

  void call(std::int64_t times) {
    for (std::int64_t i = 0; i < times; ++i) {
      work_.start();
    }
    if (work_.wait) {
      work_.wait();
    }
  }

  double sample(std::int64_t calls) {
    prepare();
    const Clock::time_point begin = Clock::now();
    call(calls);
    return seconds_since(begin);
  }

  /// Returns the seconds of one call, from `calls` calls timed together.
  double value(std::int64_t calls) { return sample(calls) / static_cast<double>(calls); }

  /// Sets calls_ to the number of calls that together last for sample_seconds.
  void find_calls() {
    for (;;) {
      const double seconds = std::max(sample(calls_), kShortest);
      std::int64_t next = calls_;
      if (seconds < options_.sample_seconds && calls_ < kMaxCalls) {
        const double wanted = static_cast<double>(calls_) * std::min(options_.sample_seconds / seconds * 1.2, 10.0);
        next = std::clamp(static_cast<std::int64_t>(std::ceil(wanted)), calls_ + 1, kMaxCalls);
      }
      next = agreed(next);
      if (next == calls_) {
        return;
      }
      calls_ = next;
    }
  }

  /// Returns the number of values of the next round. This is at most the number of values that exist already, so that a
  /// few fast values at the beginning do not determine the total number.
  [[nodiscard]] std::int64_t next_round(std::int64_t done, double seconds) const {
    const std::int64_t left = options_.max_iterations - done;
    if (seconds >= options_.target_seconds || left <= 0) {
      return 0;
    }
    const double fit = (options_.target_seconds / std::max(seconds, kShortest) - 1) * static_cast<double>(done);
    const std::int64_t most = std::min(left, done);
    return fit < static_cast<double>(most) ? std::max<std::int64_t>(static_cast<std::int64_t>(fit), 1) : most;
  }

  /// Returns rank 0's value on every rank. Collective.
  std::int64_t agreed(std::int64_t value) {
    if (ranks_.size() > 1) {
      ranks_.broadcast(inline_, {std::span(&value, 1), Shape{1}}, 0);
    }
    return value;
  }

  Samples gather(std::vector<double>& mine) {
    Samples samples;
    samples.calls = calls_;
    const std::size_t count = mine.size();
    std::vector<double> all(count * static_cast<std::size_t>(ranks_.size()));
    ranks_.all_gather(inline_, view_of(mine), view_of(all));
    samples.mean_over_ranks = Samples{.seconds = all}.mean();
    samples.seconds.assign(count, 0.0);
    for (std::size_t r = 0; r < static_cast<std::size_t>(ranks_.size()); ++r) {
      const auto first = all.begin() + static_cast<std::ptrdiff_t>(r * count);
      samples.rank_medians.push_back(median_of({first, first + static_cast<std::ptrdiff_t>(count)}));
      std::transform(first, first + static_cast<std::ptrdiff_t>(count), samples.seconds.begin(),
                     samples.seconds.begin(), [](double a, double b) { return std::max(a, b); });
    }
    return samples;
  }

  comm::Communicator& ranks_;
  const MeasureOptions& options_;
  const Work& work_;
  Stream inline_ = Stream::host_inline();
  std::int64_t calls_ = 1;
};

}  // namespace

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

Samples measure(comm::Communicator& ranks, const MeasureOptions& options, const Work& work) {
  require<UsageError>(options.min_iterations >= 1 && options.min_iterations <= options.max_iterations,
                      "measure: iterations are ", options.min_iterations, " to ", options.max_iterations,
                      ", expected at least 1, and not more than the maximum");
  require<UsageError>(options.target_seconds >= 0 && options.sample_seconds >= 0, "measure: times are ",
                      options.target_seconds, " s and ", options.sample_seconds, " s a value, expected none below 0");
  require<UsageError>(options.calls >= 0, "measure: calls are ", options.calls, ", expected none below 0");
  require<UsageError>(static_cast<bool>(work.start), "measure: there is nothing to start");
  return Measure(ranks, options, work).run();
}

Samples measure(const MeasureOptions& options, const Work& work) {
  const std::unique_ptr<comm::Communicator> alone = comm::LocalGroup(1).communicator(0);
  return measure(*alone, options, work);
}

}  // namespace lockstep::measure
