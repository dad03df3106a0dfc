#pragma once

#include <dlfcn.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <lockstep/kernels/cudnn/plan_cache.hpp>
#include <lockstep/nn/models/resnet.hpp>
#include <lockstep/nn/plan/gpu_prediction.hpp>
#include <lockstep/nn/plan/library_choices.hpp>
#include <lockstep/nn/plan/microbatch_plans.hpp>
#include <lockstep/runtime/base/error.hpp>

#include "tests/kernels/cudnn_h100.hpp"

/// Plans and tunes a model's convolutions with the real cuDNN, for an H100 that is described and not present. Nothing
/// runs on a GPU. Engines that are compiled at run time fail when the driver loads them, so they count as refused.
namespace lockstep::testing {

/// Returns the reason why cuDNN cannot plan on this machine, or an empty text if it can. `stub` is the path of the
/// toolkit's libcuda.so, which is loaded if there is no driver.
inline std::string no_cudnn_here(const char* stub) {
  // cuDNN loads the driver by its name, libcuda.so.1. It uses a library of this name that is already loaded, and the
  // toolkit's stub has this name, too.
  if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) == nullptr &&
      (*stub == 0 || dlopen(stub, RTLD_NOW | RTLD_GLOBAL) == nullptr)) {
    return "needs a CUDA driver, or the toolkit's stub of one";
  }
  return ops::cudnn::unusable();
}

enum class Of : unsigned char { training, training_and_evaluation };

/// Returns the convolutions of ResNet-50's plans in bf16, one for each layer and pass, as on a GPU.
inline std::vector<ops::ConvCall> resnet50_calls(std::int64_t batch, Of of) {
  CpuContext context({.threads = 1});
  const std::vector<nn::LibraryPlan> plans =
      nn::library_calls(context, nn::resnet(50), batch, 1,
                        {.dtype = DType::bf16, .fusions = nn::Fusions::on, .chip = nn::known_gpu("h100").chip});
  std::vector<ops::ConvCall> calls;
  for (const nn::LibraryPlan& library : plans) {
    if (of == Of::training && library.key.ends_with(nn::kEvaluating)) {
      continue;
    }
    if (const auto* conv = std::get_if<std::shared_ptr<const ops::ConvPlan>>(&library.plan)) {
      ops::ConvCall call{(*conv)->desc(), (*conv)->pass()};
      if (!ops::conv_may_serve_norm(call.desc, call.pass)) {
        call.desc.norm = {};
      }
      calls.push_back(call);
    }
  }
  return calls;
}

/// Returns each different call once, in the order of choose_libraries().
inline std::vector<ops::ConvCall> distinct(const std::vector<ops::ConvCall>& calls) {
  std::map<std::string, ops::ConvCall> by_text;
  for (const ops::ConvCall& call : calls) {
    by_text.emplace(nn::describe(call), call);
  }
  std::vector<ops::ConvCall> all;
  for (const auto& [text, call] : by_text) {
    all.push_back(call);
  }
  return all;
}

using Chosen = std::map<std::string, ops::cudnn::Algorithm>;  // algorithm of each call, by nn::describe()
using Plans = std::vector<std::shared_ptr<const ops::cudnn::Execution>>;

/// Plans every call with its algorithm in `chosen`, as a trainer does. Returns the plans that this machine can load.
inline Plans plan_all(ops::cudnn::PlanCache& cache, const ops::cudnn::Target& target,
                      const std::vector<ops::ConvCall>& calls, const Chosen& chosen) {
  Plans plans;
  for (const ops::ConvCall& call : calls) {
    try {
      plans.push_back(cache.plan(target, call.desc, call.pass, chosen.at(nn::describe(call))));
    } catch (const Error&) {  // the engine was compiled but cannot be loaded here
    }
  }
  return plans;
}

/// Calls cuDNN in the same way as choose_libraries(). Returns the choice for each call of `calls`, which is always the
/// last candidate, because its plan is the most expensive to make. With Engines::all, engines that also compute the
/// sums of a batch norm come last.
///
/// `targets` has one target for each thread. choose_libraries() holds the plans of the choices until it returns. `held`
/// receives these plans.
inline Chosen tune(ops::cudnn::PlanCache& cache, const std::vector<ops::cudnn::Target>& targets,
                   const std::vector<ops::ConvCall>& calls, ops::Engines engines, Plans& held) {
  Chosen chosen;
  const std::vector<ops::ConvCall> missing = distinct(calls);
  const std::size_t group = 2 * targets.size();
  for (std::size_t begin = 0; begin < missing.size(); begin += group) {
    const std::size_t end = std::min(missing.size(), begin + group);
    std::vector<ops::cudnn::PlanCache::Wanted> ahead;
    for (std::size_t i = begin; i < end; ++i) {
      ahead.push_back({missing[i].desc, missing[i].pass});
    }
    cache.prepare(targets, ahead, engines);
    for (std::size_t i = begin; i < end; ++i) {
      const ops::ConvCall& call = missing[i];
      Plans last;
      for (const ops::cudnn::Algorithm& algorithm :
           cache.list(targets.front(), call.desc, call.pass, engines).algorithms) {
        chosen[nn::describe(call)] = algorithm;
        last = plan_all(cache, targets.front(), {call}, chosen);
      }
      held.insert(held.end(), last.begin(), last.end());
    }
  }
  return chosen;
}

}  // namespace lockstep::testing
