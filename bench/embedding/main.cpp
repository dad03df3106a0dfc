// bench_embedding: compares calls of the C interface on the host with C++, Fortran, libtorch and
// loops that a host would write.
//
//   embedding/f32/n:32/c              lockstep_infer of a model prepared for 1024 samples
//   embedding/f32/n:32/cpp            Inference::run
//   embedding/f32/n:32/exact          Plan::run with a plan of exactly 32 samples, with copies as in Inference::run
//   embedding/f32/n:32/outputs        loops that a host would write, the inner one over outputs (loops.hpp)
//   embedding/f32/n:32/samples        loops that a host would write, the inner one over samples
//   embedding/f32/n:32/fortran        lockstep_infer in Fortran
//   embedding/f32/n:32/torch          the same network in libtorch
//   embedding/f32/wide/n:32/c         lockstep_infer of the network 500-500-500-500-500-200 (also outputs, samples)
//   embedding/f32/strided/n:32        lockstep_infer of an f32 model with f64 fields, features outermost
//   embedding/f32/train/n:32          lockstep_trainer_add and lockstep_trainer_update
//   embedding/f32/convolution/n:32    lockstep_infer of three small convolutions
//   embedding/f32/boxes:64/many|one   64 boxes of 8 x 8 x 8 cells: lockstep_infer_many, or lockstep_infer of all cells
//   embedding/f32/threads:2           20 times 1024 samples on each thread; all threads share one model
//
// The network is an MLP 4-32-32-1 with tanh, as in the column physics of a climate code. --gates checks limits
// instead (gates.hpp); the exit code is 3 when a gate fails.
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "bench/embedding/contenders.hpp"
#include "bench/embedding/gates.hpp"
#include "bench/support/runner.hpp"

namespace {

using namespace lockstep;
using bench::Case;
using bench::Contender;
using bench::Timed;

void add(std::vector<Case>& all, const std::string& name, const std::function<Contender()>& make) {
  all.push_back({name, [make] {
                   const Contender contender = make();
                   Timed timed;
                   timed.skipped = contender.missing;
                   timed.work.start = contender.call;
                   timed.sample_seconds = 1e-4;
                   timed.per_call = {{"samples_per_second", contender.samples}};
                   return timed;
                 }});
}

template <class T>
void add_cases(std::vector<Case>& all, const std::string& type) {
  for (const std::int64_t n : {1, 8, 32, 33, 128, 257, 1000, 1024}) {
    for (const std::string& way : bench::ways()) {
      add(all, concat("embedding/", type, "/n:", n, "/", way), [way, n] { return bench::make_contender<T>(way, n); });
    }
  }
  for (const bool many : {true, false}) {
    add(all, concat("embedding/", type, "/boxes:64/", many ? "many" : "one"),
        [many] { return bench::make_boxes<T>(many); });
  }
  for (const int threads : {1, 2}) {
    add(all, concat("embedding/", type, "/threads:", threads), [threads] { return bench::make_threads<T>(threads); });
  }
}

struct Options {
  std::string gates{};  ///< regular expression of --gates; empty: the benchmarks run
  double slack = 1;
};

int run(const Options& own, comm::Session& session, const DeviceRequest&, const bench::RunOptions& options) {
  if (!own.gates.empty()) {
    const bench::GateReport report = bench::check_gates({.chosen = own.gates, .slack = own.slack});
    std::printf("%s%d failed\n", report.text.c_str(), report.failed);
    return report.failed == 0 ? exit_code::kFinished : exit_code::kFailure;
  }
  std::vector<Case> all;
  add_cases<float>(all, "f32");
  add_cases<double>(all, "f64");
  for (const std::int64_t n : {1, 32, 1024}) {
    for (const char* way : {"c", "outputs", "samples"}) {
      add(all, concat("embedding/f32/wide/n:", n, "/", way),
          [way, n] { return bench::make_contender<float>(way, n, true); });
    }
    add(all, concat("embedding/f32/strided/n:", n), [n] { return bench::make_strided(n); });
    add(all, concat("embedding/f32/train/n:", n), [n] { return bench::make_training(n); });
    add(all, concat("embedding/f32/convolution/n:", n), [n] { return bench::make_convolution(n); });
  }
  return bench::run_cases(session, options, {{"threads", "1"}, {"libtorch", bench::torch_version()}}, all);
}

}  // namespace

int main(int argc, char** argv) {
  Options own;
  return bench::run_program(
      argc, argv,
      {.name = "bench_embedding",
       .description = "Times a call of the C interface on the host, with an MLP 4-32-32-1.",
       .add_options =
           [&own](CLI::App& app) {
             app.add_option(
                 "--gates", own.gates,
                 "check the limits whose names this regular expression matches ('.': all limits), instead of timing");
             app.add_option("--slack", own.slack, "factor of the limits of --gates")->check(CLI::Range(0.0, 1e6));
           },
       .run = std::bind_front(run, std::cref(own))});
}
