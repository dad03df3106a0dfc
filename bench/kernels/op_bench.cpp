#include "bench/kernels/op_bench.hpp"

#include <limits>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>

#include <lockstep/comm/launch/cpu_share.hpp>
#include <lockstep/runtime/base/error.hpp>

#include "bench/support/gpus.hpp"
#include "bench/support/runner.hpp"
#include "measure/arithmetic.hpp"
#include "measure/timing.hpp"

namespace lockstep::bench {
namespace {

constexpr double kDoesNotApply = std::numeric_limits<double>::quiet_NaN();

struct Limits {
  double bandwidth = kDoesNotApply;  ///< bytes that a copy reads and writes per second
  double fma = kDoesNotApply;        ///< f32 operations per second in registers, on the host
};

/// Makes the memory of an op case and the call to be timed.
Timed timed(const testing::OpCase& item, Context& context, const Limits& limits) {
  constexpr double kSampleSeconds = 1e-3;
  const auto instance = std::make_shared<testing::OpInstance>(item, context);
  return {.work = {.start = [instance] { instance->enqueue(); }, .wait = [&context] { context.synchronize(); }},
          .sample_seconds = kSampleSeconds,
          .per_call = {{"bytes_per_second", testing::bytes_of(item)},
                       {"percent_of_copy", 100 * testing::bytes_of(item) / limits.bandwidth, /*rate=*/false},
                       {"flop_per_second", item.flops > 0 ? item.flops : kDoesNotApply},
                       {"percent_of_fma",
                        item.flops > 0 && item.dtype == DType::f32 ? 100 * item.flops / limits.fma : kDoesNotApply,
                        /*rate=*/false}},
          .counters = {{"bytes", testing::bytes_of(item)}},
          .label = std::string(name_of(item.dtype))};
}

int run(comm::Session& session, const DeviceRequest& devices, const RunOptions& options, int threads,
        const std::vector<testing::OpCase>& items) {
  constexpr double kLimitSeconds = 0.3;
  const ProcessGpus mine = gpus_of_process(session, devices);
  std::unique_ptr<Context> context;
  session.agree([&] {
    if (!mine.devices.empty()) {
      context = make_context(mine.devices.front());
    } else {
      context = std::make_unique<CpuContext>(
          CpuContext::Options{.threads = threads > 0 ? threads : comm::cpu_share(session).threads()});
    }
  });
  Limits limits;
  RunContext about{{"device", to_string(context->device())}};
  const auto* const cpu = dynamic_cast<const CpuContext*>(context.get());
  if (cpu != nullptr) {
    about.emplace_back("threads", concat(cpu->threads()));
  }
  if (!options.list_tests) {
    limits.bandwidth = measure::copy_bandwidth(*context, kLimitSeconds);
    about.emplace_back("copy_bytes_per_second", concat(limits.bandwidth));
    if (cpu != nullptr) {
      limits.fma = measure::fma_flop_per_second(*cpu, kLimitSeconds);
      about.emplace_back("fma_flop_per_second", concat(limits.fma));
    }
  }
  std::vector<Case> cases;
  for (const testing::OpCase& item : items) {
    cases.push_back({item.name, [&item, &session, &context, limits] {
                       Timed made;
                       session.agree([&] {
                         try {
                           made = timed(item, *context, limits);
                         } catch (const UnsupportedError& error) {
                           made.skipped = error.what();
                         }
                       });
                       return made;
                     }});
  }
  return run_cases(session, options, about, cases);
}

}  // namespace

int op_bench_main(int argc, char** argv, const std::vector<testing::OpCase>& cases) {
  int threads = 0;
  return run_program(
      argc, argv,
      {.name = "bench_kernels",
       .description =
           "Times single calls of ops, at the shapes of real networks, on the first GPU of --devices or on the\n"
           "host. percent_of_copy compares the bytes that a call must move with a large copy in the same memory\n"
           "(bytes read + bytes written); a case that fits a cache can pass 100. percent_of_fma, on the host,\n"
           "compares operations in f32 with multiply-adds in registers.",
       .add_options = [&](CLI::App& app) { add_threads_option(app, threads); },
       .ranks = host_ranks,
       .run = [&](comm::Session& session, const DeviceRequest& devices,
                  const RunOptions& options) { return run(session, devices, options, threads, cases); }});
}

}  // namespace lockstep::bench
