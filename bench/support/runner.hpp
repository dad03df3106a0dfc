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

/// What one call brings about: the counter is `amount` over the seconds of a call. NaN does not apply and is left out.
struct PerCall {
  std::string name;
  double amount = 0;
  bool rate = true;  ///< a second: "2.4G/s"; false: a share, such as per cent of a limit
};

/// One case with its memory, ready to be timed.
struct Timed {
  measure::Work work{};
  double sample_seconds = 0;              ///< shorter calls are timed together, as in measure::MeasureOptions
  std::shared_ptr<measure::Load> load{};  ///< runs beside the work, when there is one
  std::vector<PerCall> per_call{};
  std::vector<std::pair<std::string, double>> counters{};  ///< NaN is left out
  std::string label{};
  std::string skipped{};  ///< why this case cannot be timed here; or empty
  /// After each run of the library: for counters of its own, and to keep what is concluded from.
  std::function<void(const measure::Samples& samples, benchmark::UserCounters& counters)> after{};
};

struct Case {
  std::string name;  ///< "copy/host_to_host/pageable/one_way/memcpy/1048576"; the library adds "/manual_time"
  /// Makes memory, checks results. Called by all ranks together when the case's turn comes; what it returns goes before
  /// the next one is called.
  std::function<Timed()> open;
};

/// What stands above the results: names and values, also in the context of the JSON.
using RunContext = std::vector<std::pair<std::string, std::string>>;

/// Registers the cases with Google Benchmark and runs those that the options choose; rank 0 reports. The library
/// chooses the number of iterations in each process, by the time that the case reports: on all ranks the same one, that
/// of the slowest rank, so that all of them choose the same number. conclude: what is printed below the table, on rank
/// 0.
///
/// UsageError for a filter that chooses nothing, DataError for a file that cannot be written: on all ranks, by way of
/// Session::agree(). Returns the exit code.
int run_cases(comm::Session& session, const RunOptions& options, const RunContext& context,
              const std::vector<Case>& cases, const std::function<std::string()>& conclude = {});

}  // namespace lockstep::bench
