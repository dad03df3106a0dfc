#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include <lockstep/comm/launch/session.hpp>

#include "bench/support/options.hpp"
#include "measure/load.hpp"
#include "measure/measure.hpp"

namespace lockstep::bench {

/// A counter of one case: `amount` divided by the seconds of a call. NaN values are not reported.
struct PerCall {
  std::string name;
  double amount = 0;
  bool rate = true;  ///< true: a rate, "2.4G/s"; false: a share, such as per cent of a limit
};

/// One case with its memory, ready to be timed.
struct Timed {
  measure::Work work{};
  double sample_seconds = 0;              ///< least duration of a sample: shorter calls are timed together
  std::shared_ptr<measure::Load> load{};  ///< load that runs at the same time as the work; may be null
  std::vector<PerCall> per_call{};
  std::vector<std::pair<std::string, double>> counters{};  ///< (name, value); NaN values are not reported
  std::string label{};
  std::string skipped{};  ///< reason why this case cannot be timed here; empty: it can be timed
  /// Google Benchmark runs a case several times. This function is called after each run, and adds counters.
  std::function<void(const measure::Samples& samples, benchmark::UserCounters& counters)> after{};
};

/// A load that runs at the same time as a case (Timed::load), and its context.
struct Neighbour {
  std::unique_ptr<Context> context;
  std::unique_ptr<measure::Load> load;
};

struct Case {
  std::string name;  ///< "copy/host_to_host/pageable/one_way/memcpy/1048576"; Google Benchmark adds "/manual_time"
  /// Allocates the memory of the case and checks the results of one call. All ranks call open() at the same time. The
  /// returned object is destroyed before the next case is opened.
  std::function<Timed()> open;
};

/// Names and values that rank 0 prints above the results and writes to the context of the JSON file.
using RunContext = std::vector<std::pair<std::string, std::string>>;

/// Registers the cases with Google Benchmark and runs the selected cases; rank 0 reports. In each process Google
/// Benchmark chooses the number of iterations from the time that the case reports. All ranks report the time of the
/// slowest rank, so Google Benchmark chooses the same number on all ranks.
///
/// Throws, on all ranks, UsageError for a filter that selects nothing and DataError for a file that cannot be written
/// (Session::agree()). Returns the exit code.
int run_cases(comm::Session& session, const RunOptions& options, const RunContext& context,
              const std::vector<Case>& cases);

}  // namespace lockstep::bench
