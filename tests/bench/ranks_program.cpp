// A benchmark program for programs_test.cpp whose ranks differ: rank 1 takes 2 ms longer than the other ranks. At the
// end every rank prints the number of its calls.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <thread>

#include <CLI/CLI.hpp>

#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/runtime/base/error.hpp>

#include "bench/support/runner.hpp"

namespace {

using namespace lockstep;  // NOLINT(google-build-using-namespace): a program
using bench::Timed;

int run(comm::Session& session, const bench::RunOptions& options) {
  long calls = 0;
  const auto sleeping = [&] {
    Timed timed;
    timed.work.start = [&] {
      ++calls;
      std::this_thread::sleep_for(std::chrono::milliseconds(session.rank() == 1 ? 2 : 0));
    };
    timed.per_call = {{"things_per_second", 10}, {"share", 1, /*rate=*/false}, {"nothing", std::nan("")}};
    timed.counters = {{"fixed", 5}, {"nothing_either", std::nan("")}};
    return timed;
  };
  const auto unsupported = [&] {
    Timed timed;
    timed.skipped = session.rank() == 1 ? "rank 1 cannot" : "";
    return timed;
  };
  const auto fails = [&]() -> Timed {
    session.agree([&] { require<StateError>(session.rank() != 1, "a wrong result"); });
    return {};
  };
  const int code = bench::run_cases(session, options, {{"about", "ranks"}},
                                    {{"slow/rank_1", sleeping}, {"unsupported/rank_1", unsupported}, {"fails", fails}});
  const auto all = comm::all_gather_value(session.control(), static_cast<double>(calls));
  if (session.rank() == 0) {
    std::printf("calls:");
    for (const double each : all) {
      std::printf(" %.0f", each);
    }
    std::printf("\n");
  }
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  return bench::run_program(argc, argv,
                            {.name = "test_bench_ranks",
                             .description = "Ranks that differ.",
                             .add_options = [](CLI::App&) {},
                             .ranks = bench::host_ranks,
                             .run = [](comm::Session& session, const DeviceRequest&,
                                       const bench::RunOptions& options) { return run(session, options); }});
}
