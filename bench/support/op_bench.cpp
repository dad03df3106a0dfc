#include "bench/support/op_bench.hpp"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>

#include <lockstep/comm/launch/run_alone.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/version.hpp>

#include "bench/support/json_lines.hpp"
#include "bench/support/measure.hpp"
#include "bench/support/op_bench_options.hpp"
#include "bench/support/timing.hpp"

namespace lockstep::bench {
namespace {

int run(const OpBenchOptions& options, const std::vector<testing::OpCase>& cases) {
  std::vector<const testing::OpCase*> chosen;
  std::size_t width = 4;
  for (const testing::OpCase& item : cases) {
    if (item.name.find(options.filter) != std::string::npos) {
      chosen.push_back(&item);
      width = std::max(width, item.name.size());
    }
  }
  require<UsageError>(!chosen.empty(), "no case contains '", options.filter, "'; --list prints the names");
  if (options.list) {
    for (const testing::OpCase* item : chosen) {
      std::printf("%s\n", item->name.c_str());
    }
    return exit_code::kFinished;
  }
  std::optional<JsonLines> json;
  if (!options.json.empty()) {
    json.emplace(options.json);
  }

  std::unique_ptr<Context> context;
  int threads = 0;
  if (options.device == Device::cpu()) {
    auto cpu = std::make_unique<CpuContext>(CpuContext::Options{.threads = options.threads});
    threads = cpu->threads();
    context = std::move(cpu);
  } else {
    context = make_context(options.device);
  }
  const double bandwidth = copy_bandwidth(*context, options.min_seconds);
  std::printf("%s\n%s, %d threads; copy %.1f GB/s\n\n", build_description().c_str(), to_string(options.device).c_str(),
              threads, bandwidth * 1e-9);
  const int name_width = static_cast<int>(width);
  std::printf("%-*s %12s %12s %9s %7s %9s\n", name_width, "case", "median", "bytes", "GB/s", "%copy", "GFLOP/s");

  const Clock::time_point start = Clock::now();
  const auto over = [&] { return options.max_seconds > 0 && seconds_since(start) >= options.max_seconds; };
  std::size_t left_out = 0;
  for (const testing::OpCase* item : chosen) {
    if (over()) {
      ++left_out;
      continue;
    }
    double seconds = 0;
    try {
      testing::OpInstance instance(*item, *context);
      seconds = median_seconds(*context, options.min_seconds, [&] { instance.enqueue(); });
    } catch (const UnsupportedError& error) {
      std::printf("%-*s %s\n", name_width, item->name.c_str(), error.what());
      continue;
    }
    const double gb = item->bytes / seconds * 1e-9;
    const double gflop = item->flops / seconds * 1e-9;
    const double share = 100 * item->bytes / seconds / bandwidth;
    std::printf("%-*s %9.1f us %12.0f %9.2f %7.1f", name_width, item->name.c_str(), seconds * 1e6, item->bytes, gb,
                share);
    if (item->flops > 0) {
      std::printf(" %9.2f", gflop);
    }
    std::printf("\n");
    std::fflush(stdout);
    if (json) {
      json->write({{"name", item->name},
                   {"dtype", std::string(name_of(item->dtype))},
                   {"device", to_string(options.device)},
                   {"threads", threads},
                   {"seconds", seconds},
                   {"bytes", static_cast<std::int64_t>(item->bytes)},
                   {"flops", item->flops},
                   {"gb_per_s", gb},
                   {"gflop_per_s", gflop},
                   {"copy_gb_per_s", bandwidth * 1e-9},
                   {"percent_of_copy", share}});
    }
  }
  if (left_out > 0) {
    std::printf("left out: the last %zu of %zu cases, %g s were over\n", left_out, chosen.size(), options.max_seconds);
  }
  if (json) {
    json->close();
  }
  return exit_code::kFinished;
}

}  // namespace

int op_bench_main(int argc, char** argv, const std::vector<testing::OpCase>& cases) {
  return comm::run_alone([&] {
    const std::optional<OpBenchOptions> options = parse_op_bench(argc, argv);
    return options ? run(*options, cases) : exit_code::kFinished;
  });
}

}  // namespace lockstep::bench
