// bench_inference: latency of Inference on the host, one thread, beside a plan of exactly that size and plain loops.
//
//   inference/f32/n:32/run      Inference::run, which splits any number of samples into plans of a few sizes
//   inference/f32/n:32/exact    Plan::run of a plan of 32 samples, with the same copies in and out
//   inference/f32/n:32/plain    loops over samples, outputs and inputs, with std::tanh
//
// The network is an MLP 4-32-32-1 with tanh, as column physics in a climate code has them. After the rows: ratios of
// medians. For figures: --benchmark_repetitions=9
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bench/inference/network.hpp"
#include "bench/support/runner.hpp"

namespace {

using namespace lockstep;
using bench::Case;
using bench::Network;
using bench::Timed;

/// Medians of each case's repetitions, by type and size, then by what was run.
using Medians = std::map<std::string, std::map<std::string, std::vector<double>>>;

template <class T>
void add_cases(std::vector<Case>& all, Medians& medians, const char* type, const std::vector<std::int64_t>& sizes) {
  for (const std::int64_t n : sizes) {
    const std::string group = concat(type, "/n:", n);
    for (const std::string what : {"run", "exact", "plain"}) {
      all.push_back(
          {concat("inference/", group, "/", what), [&medians, group, what, n] {
             const auto network = std::make_shared<Network<T>>(n);
             Timed timed;
             timed.work.start = what == "run" ? network->run() : what == "exact" ? network->exact() : network->plain();
             timed.work.start();  // what is made at first use
             timed.sample_seconds = 1e-4;
             timed.per_call = {{"samples_per_second", static_cast<double>(n)}};
             timed.after = [network, &medians, group, what](const measure::Samples& samples, benchmark::UserCounters&) {
               medians[group][what].push_back(samples.median());
             };
             return timed;
           }});
    }
  }
}

std::string ratios(const Medians& medians) {
  std::string text;
  for (const auto& [group, by_what] : medians) {
    const auto median = [&, &rows = by_what](const char* what) {
      const auto found = rows.find(what);
      return found == rows.end() ? std::nan("") : measure::median_of(found->second);
    };
    const double run = median("run");
    text += concat("inference/", group, ": ", run * 1e6, " us; ", run / median("plain"), " of plain loops, ",
                   run / median("exact"), " of a plan of that size\n");
  }
  return text;
}

int run(comm::Session& session, const DeviceRequest&, const bench::RunOptions& options) {
  require<UsageError>(session.size() == 1, "bench_inference runs on ", session.size(), " ranks, expected 1");
  const std::vector<std::int64_t> sizes{1, 2, 5, 9, 17, 32, 33, 65, 100, 200, 257, 700, 1024};
  Medians medians;
  std::vector<Case> all;
  add_cases<float>(all, medians, "f32", sizes);
  add_cases<double>(all, medians, "f64", sizes);
  return bench::run_cases(session, options, {{"threads", "1"}}, all, [&] { return ratios(medians); });
}

}  // namespace

int main(int argc, char** argv) {
  return bench::run_program(argc, argv,
                            {.name = "bench_inference",
                             .description = "Latency of Inference on the host, one thread, an MLP 4-32-32-1.",
                             .add_options = [](CLI::App&) {},
                             .ranks = [](const DeviceRequest&) { return std::nullopt; },
                             .run = run});
}
