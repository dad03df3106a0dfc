#include "bench/support/runner.hpp"

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/version.hpp>

namespace lockstep::bench {
namespace {

class NullReporter final : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context& /*context*/) override { return true; }
  void ReportRuns(const std::vector<Run>& /*runs*/) override {}
};

/// Passes options to Google Benchmark. Throws UsageError for an option that Google Benchmark does not take.
void initialize(const char* executable, std::vector<std::string> options) {
  std::string name = executable;
  std::vector<char*> words{name.data()};
  for (std::string& option : options) {
    words.push_back(option.data());
  }
  auto count = static_cast<int>(words.size());
  words[0] = const_cast<char*>(executable);  // NOLINT(cppcoreguidelines-pro-type-const-cast): the library keeps it
  benchmark::Initialize(&count, words.data());
  require<UsageError>(count == 1, "the benchmark library does not take '", count == 1 ? "" : words[1], "'");
}

/// Returns rank 0's names of the cases, on all ranks. Names may differ between ranks, as a name may contain the number
/// of the rank's GPU.
std::vector<std::string> names_of_rank_0(comm::Session& session, const std::vector<Case>& cases) {
  std::string joined;
  for (const Case& each : cases) {
    joined += each.name + "\n";
  }
  std::istringstream lines(comm::broadcast_text(session.control(), joined));
  std::vector<std::string> names;
  for (std::string line; std::getline(lines, line);) {
    names.push_back(line);
  }
  session.agree([&] {
    require<UsageError>(names.size() == cases.size(), "rank 0 has ", names.size(), " benchmarks, this one ",
                        cases.size(), ": the ranks' machines or options differ");
  });
  return names;
}

class Runner {
 public:
  Runner(comm::Session& session, const RunOptions& options, const std::vector<Case>& cases)
      : session_(session), options_(options), cases_(cases) {
    const std::vector<std::string> names = names_of_rank_0(session, cases);
    for (std::size_t i = 0; i < cases.size(); ++i) {
      auto* registered = benchmark::RegisterBenchmark(names[i].c_str(), [this, i](benchmark::State& s) { run(i, s); });
      registered->UseManualTime();
      if (options.iterations > 0) {
        registered->Iterations(options.iterations);
      }
    }
  }

  /// Returns the names of the cases that the filter selects. Throws UsageError when the filter selects no case.
  [[nodiscard]] std::string chosen() const {
    NullReporter reporter;
    std::ostringstream names;
    std::ostringstream problem;
    reporter.SetOutputStream(&names);
    reporter.SetErrorStream(&problem);
    initialize(options_.executable,
               {concat("--benchmark_filter=", options_.filter), "--benchmark_list_tests=true", "--benchmark_out="});
    const bool any = benchmark::RunSpecifiedBenchmarks(&reporter) > 0;
    const std::string why = problem.str();
    require<UsageError>(any, "--benchmark_filter is '", options_.filter,
                        "', expected a regular expression that matches a name of --benchmark_list_tests: ",
                        why.substr(0, why.find('\n')));
    return names.str();
  }

  /// Passes the options of the command line to Google Benchmark. Only rank 0 writes the output file.
  void initialize_chosen() const {
    std::vector<std::string> arguments = options_.library;
    if (session_.rank() != 0) {
      arguments.emplace_back("--benchmark_out=");
    }
    initialize(options_.executable, std::move(arguments));
  }

  void run_chosen() {
    begin_ = measure::Clock::now();
    if (session_.rank() == 0) {
      benchmark::RunSpecifiedBenchmarks();
    } else {
      NullReporter nothing;
      benchmark::RunSpecifiedBenchmarks(&nothing);
    }
    timed_.reset();
  }

 private:
  /// Times a case. Google Benchmark calls run() again with a larger number of iterations, until the iterations take
  /// long enough.
  void run(std::size_t index, benchmark::State& state) {
    open(index);
    if (!timed_) {
      state.SkipWithError(skipped_.c_str());
      return;
    }
    const auto calls = static_cast<std::int64_t>(state.max_iterations);
    const measure::MeasureOptions options{.sample_seconds = timed_->sample_seconds, .calls = calls};
    const auto take = [&] { return measure::measure(session_.control(), options, timed_->work); };
    measure::Samples samples;
    while (state.KeepRunningBatch(state.max_iterations)) {
      if (timed_->load) {
        const measure::Beside beside = measure::measure_beside(session_.control(), *timed_->load, take);
        samples = beside.samples;
        set(state, "alone_s", beside.alone_seconds);
        set(state, "slowdown", beside.slowdown);
        set(state, "load_slowdown", beside.load_slowdown);
      } else {
        samples = take();
      }
      state.SetIterationTime(samples.mean() * static_cast<double>(calls));
    }
    count(state, samples);
  }

  /// Opens the case number `index`. Destroys the case that was open before. Does nothing if case `index` is already
  /// open.
  void open(std::size_t index) {
    if (index_ == index) {
      return;
    }
    timed_.reset();
    index_ = index;
    skipped_.clear();
    const double seconds = comm::all_gather_value(session_.control(), measure::seconds_since(begin_))[0];
    if (options_.max_seconds > 0 && seconds >= options_.max_seconds) {
      skipped_ = concat("left out: ", options_.max_seconds, " s were over");
      return;
    }
    Timed timed = cases_[index].open();
    for (const std::string& reason : comm::all_gather_text(session_.control(), timed.skipped)) {
      skipped_ = skipped_.empty() ? reason : skipped_;
    }
    if (skipped_.empty()) {
      timed_.emplace(std::move(timed));
    }
  }

  static void set(benchmark::State& state, const std::string& name, double value,
                  benchmark::Counter::Flags flags = benchmark::Counter::kDefaults) {
    if (std::isfinite(value)) {  // JSON has no NaN
      state.counters[name] = benchmark::Counter(value, flags);
    }
  }

  void count(benchmark::State& state, const measure::Samples& samples) const {
    for (const int percent : {50, 95, 99}) {
      if (const std::optional<double> seconds = samples.percentile(percent)) {
        set(state, concat("p", percent, "_s"), *seconds);
      }
    }
    set(state, "min_s", samples.min());
    set(state, "max_s", samples.max());
    if (samples.calls > 1) {
      set(state, "calls_per_value", static_cast<double>(samples.calls));
    }
    if (session_.size() > 1) {
      set(state, "rank_spread", samples.rank_spread());
      set(state, "mean_over_ranks_s", samples.mean_over_ranks);
    }
    for (const PerCall& each : timed_->per_call) {
      set(state, each.name, each.rate ? each.amount : each.amount / samples.mean(),
          each.rate ? benchmark::Counter::kIsIterationInvariantRate : benchmark::Counter::kDefaults);
    }
    for (const auto& [name, value] : timed_->counters) {
      set(state, name, value);
    }
    state.SetLabel(timed_->label);
    if (timed_->after) {
      timed_->after(samples, state.counters);
    }
  }

  comm::Session& session_;
  const RunOptions& options_;
  const std::vector<Case>& cases_;
  measure::Clock::time_point begin_;
  std::optional<std::size_t> index_;
  std::optional<Timed> timed_;  ///< the open case, number index_; empty if the case is skipped
  std::string skipped_;
};

/// Throws DataError when the file of --benchmark_out is incomplete. This check is needed, because Google Benchmark does
/// not check that its output was written.
void require_written(const RunOptions& options) {
  if (!std::filesystem::is_regular_file(options.out)) {  // a pipe, for example
    return;
  }
  std::ifstream file(options.out);
  char last = 0;
  for (char c = 0; file.get(c);) {
    last = c == '\n' ? last : c;
  }
  require<DataError>(last == '}' || (last != 0 && options.out_format != "json"), options.out, ": writing failed");
}

}  // namespace

int run_cases(comm::Session& session, const RunOptions& options, const RunContext& context,
              const std::vector<Case>& cases) {
  const bool reports = session.rank() == 0;
  Runner runner(session, options, cases);
  std::string names;
  session.agree([&] {
    names = runner.chosen();
    if (reports && !options.out.empty() && !options.list_tests) {
      require<DataError>(std::ofstream(options.out).good(), options.out, ": cannot be written");
    }
    runner.initialize_chosen();
  });
  if (options.list_tests) {
    std::printf("%s", reports ? names.c_str() : "");
    return exit_code::kFinished;
  }
  benchmark::AddCustomContext("library", build_description());
  benchmark::AddCustomContext("mpi", session.description());
  benchmark::AddCustomContext("ranks", concat(session.size()));
  benchmark::AddCustomContext("nodes", concat(session.nodes()));
  for (const auto& [name, value] : context) {
    benchmark::AddCustomContext(name, value);
  }
  runner.run_chosen();
  session.agree([&] {
    if (reports && !options.out.empty()) {
      require_written(options);
    }
  });
  return exit_code::kFinished;
}

}  // namespace lockstep::bench
