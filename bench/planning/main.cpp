// bench_planning: what it costs to plan and tune the convolutions of a ResNet-50 by cuDNN, in seconds of the processor,
// for an H100 that need not be here. `asked` is how often cuDNN was asked for a list or a plan.
#include <sys/resource.h>

#include <chrono>
#include <cstdio>

#include <CLI/CLI.hpp>

#include "tests/nn/plan/cudnn_calls.hpp"

namespace lockstep::bench {
namespace {

using ops::cudnn::Algorithm;
using ops::cudnn::PlanCache;
using ops::cudnn::Target;
using testing::Chosen;
using Calls = std::vector<ops::ConvCall>;

double processor_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

template <class F>
void measure(const char* what, const F& f) {
  const auto begin = std::chrono::steady_clock::now();
  const double before = processor_seconds();
  const auto [lists, plans] = f();
  const double wall = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::printf("%-44s %7d lists %7d plans %9.2f s of the processor %9.2f s\n", what, lists, plans,
              processor_seconds() - before, wall);
  std::fflush(stdout);
}

/// A cache for each question: nothing is known from the one before.
std::pair<int, int> without_cache(const Target& target, const Calls& calls, Chosen& chosen, bool tune) {
  int lists = 0;
  int plans = 0;
  if (tune) {
    for (const ops::ConvCall& call : calls) {  // the plans that say which calls there are
      PlanCache one;
      ops::ConvDesc bare = call.desc;
      bare.norm = {};
      const Algorithm first = one.list(target, bare, call.pass, ops::Engines::all).algorithms.at(0);
      testing::plan_all(one, target, {call}, {{nn::describe(call), first}});
      ++lists, ++plans;
    }
    for (const ops::ConvCall& call : testing::distinct(calls)) {
      PlanCache one;
      testing::Plans held;
      chosen.merge(testing::tune(one, {target}, {call}, ops::Engines::all, held));
      lists += one.lists_made();
      plans += one.plans_made();
    }
  }
  for (const ops::ConvCall& call : calls) {
    PlanCache one;
    testing::plan_all(one, target, {call}, chosen);
    ++plans;
  }
  return {lists, plans};
}

std::pair<int, int> with_cache(const std::vector<Target>& targets, const Calls& calls, ops::Engines engines,
                               Chosen& chosen) {
  PlanCache cache;
  testing::Plans held;
  chosen = testing::tune(cache, targets, calls, engines, held);
  testing::plan_all(cache, targets.front(), calls, chosen);
  return {cache.lists_made(), cache.plans_made()};
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  using namespace lockstep;
  CLI::App app("Seconds that planning and tuning a ResNet-50 take in cuDNN, for a described H100.");
  std::int64_t batch = 256;
  std::vector<int> threads{1, 2};
  bool before = true;
  std::size_t norms = 0;
  app.add_option("--batch", batch)->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--threads", threads, "that make plans ahead, e.g. 1,2; 0: leaves out the first run")
      ->delimiter(',')
      ->check(CLI::NonNegativeNumber);
  app.add_flag("!--without-before", before, "leaves out what the same took when nothing was kept");
  app.add_option("--norms", norms, "takes only so many of the distinct calls beside a norm; 0: takes all calls");
  CLI11_PARSE(app, argc, argv);
  if (const std::string why = testing::no_cudnn_here(LOCKSTEP_DRIVER_STUB); !why.empty()) {
    std::fprintf(stderr, "bench_planning: %s\n", why.c_str());
    return 77;
  }
  const ops::cudnn::Descriptor properties = ops::cudnn::describe_device(testing::kH100);
  const ops::cudnn::Target target{nullptr, &properties};
  bench::Calls calls = testing::resnet50_calls(batch, testing::Of::training_and_evaluation);
  if (norms > 0) {
    calls = testing::distinct(calls);
    std::erase_if(calls, [](const ops::ConvCall& call) { return !call.desc.norm.wanted; });
    calls.resize(std::min(norms, calls.size()));
  }
  std::printf("cuDNN %s, bf16, batch %lld: %zu calls, %zu distinct\n",
              ops::cudnn::version_text(ops::cudnn::api().get_version()).c_str(), static_cast<long long>(batch),
              calls.size(), testing::distinct(calls).size());
  testing::Chosen chosen, fast;
  {
    ops::cudnn::PlanCache warm;  // cuDNN's libraries are loaded by the first question
    testing::Plans held;
    (void)testing::tune(warm, {target}, {calls.front()}, ops::Engines::all, held);
  }
  if (before) {
    bench::measure("first run, nothing kept", [&] { return bench::without_cache(target, calls, chosen, true); });
    bench::measure("later run, nothing kept", [&] { return bench::without_cache(target, calls, chosen, false); });
  }
  std::erase(threads, 0);
  for (const int count : threads) {
    const std::vector<ops::cudnn::Target> targets(static_cast<std::size_t>(count), target);
    bench::measure(concat("first run, ", count, " threads").c_str(),
                   [&] { return bench::with_cache(targets, calls, ops::Engines::all, chosen); });
    bench::measure(concat("first run, --tune fast, ", count, " threads").c_str(),
                   [&] { return bench::with_cache(targets, calls, ops::Engines::precompiled, fast); });
  }
  if (chosen.empty()) {  // what tuning would choose here: the last of each list
    ops::cudnn::PlanCache lists;
    for (const ops::ConvCall& call : testing::distinct(calls)) {
      chosen[nn::describe(call)] = lists.list(target, call.desc, call.pass, ops::Engines::all).algorithms.back();
    }
  }
  for (const auto& [what, of] : {std::pair("later run", &chosen), {"later run, --tune fast", &fast}}) {
    if (of->empty()) {
      continue;
    }
    bench::measure(what, [&] {
      ops::cudnn::PlanCache cache;
      testing::plan_all(cache, target, calls, *of);
      return std::pair(cache.lists_made(), cache.plans_made());
    });
  }
  return 0;
}
