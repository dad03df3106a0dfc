#include <lockstep/kernels/cudnn/plan_cache.hpp>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include <lockstep/kernels/detail/providers.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/cuda/device_guard.hpp>
#include <lockstep/runtime/machine/cpu_binding.hpp>

namespace lockstep::ops::cudnn {
namespace {

/// Returns `desc` without the members that the pass does not read, so that equal work has equal keys in the cache.
ConvDesc read_by(const ConvDesc& desc, ConvPass pass) {
  ConvDesc d = desc;
  if (pass == ConvPass::forward) {
    d.grad_mode = GradMode::overwrite;
  } else {
    d.bias = false;
  }
  return d;
}

/// Calls f(i, target) for all i in [0, count), spread over threads: one thread for each target. If a call throws, no
/// more calls begin, and the first error is thrown after all threads have ended.
template <class F>
void spread(std::span<const Target> targets, std::size_t count, const F& f) {
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::exception_ptr error;
  const auto work = [&](const Target& target) {
    try {
      std::optional<cuda::DeviceGuard> guard;
      if (target.device) {
        guard.emplace(*target.device);
      }
      for (std::size_t i = next++; i < count; i = next++) {
        f(i, target);
      }
    } catch (...) {
      next = count;
      const std::lock_guard lock(mutex);
      error = error == nullptr ? std::current_exception() : error;
    }
  };
  {
    std::vector<std::thread> threads;
    threads.reserve(targets.size());
    for (std::size_t i = 1; i < std::min(targets.size(), count); ++i) {
      try {
        threads.push_back(helper_thread([&work, &target = targets[i]] { work(target); }));
      } catch (const std::system_error&) {
        break;  // no further thread can start: the running threads do all the work
      }
    }
    work(targets.front());
    for (std::thread& thread : threads) {
      thread.join();
    }
  }
  if (error != nullptr) {
    std::rethrow_exception(error);
  }
}

}  // namespace

Execution::Execution(const Target& target, const ConvDesc& desc, ConvPass pass, const Algorithm& algorithm)
    : graph_(describe(desc, pass, algorithm.form), target),
      config_(graph_, target, algorithm.engine),
      plan_(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
  require<UnsupportedError>(allowed(config_, desc), "the engine rounds more than a convolution of ", desc.dtype,
                            desc.dtype == DType::f32 && !desc.tf32 ? " without tf32 may" : " may",
                            ", expected another engine");
  if (target.handle != nullptr) {  // older versions of cuDNN 9 need the handle
    plan_.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, target.handle);
  } else {
    plan_.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, *target.properties);
  }
  plan_.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config_.descriptor());
  plan_.finalize();
  workspace_bytes_ =
      static_cast<std::size_t>(plan_.value<std::int64_t>(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64));
  deterministic_ = !config_.has(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
}

PlanCache::Listed PlanCache::ask(const Target& target, const ConvDesc& desc, ConvPass pass, Engines engines) {
  Listed listed;
  listed.algorithms = algorithms(target, desc, pass, engines, &listed.refused);
  return listed;
}

PlanCache::Made PlanCache::make(const Target& target, const ConvDesc& desc, ConvPass pass, const Algorithm& algorithm) {
  Made made;
  unless_refused([&] { made.plan = std::make_shared<const Execution>(target, desc, pass, algorithm); },
                 [&](const Error& error) {
                   made.refusal = error.what();
                   made.unsupported = dynamic_cast<const UnsupportedError*>(&error) != nullptr;
                 });
  return made;
}

PlanCache::PlanKey PlanCache::plan_key(const ConvDesc& desc, ConvPass pass, const Algorithm& algorithm) {
  ConvDesc d = read_by(desc, pass);
  if (algorithm.form != Form::norm) {
    d.norm = {};
  }
  return {d, pass, algorithm.text()};
}

const PlanCache::Listed& PlanCache::list(const Target& target, const ConvDesc& desc, ConvPass pass, Engines engines) {
  const ListKey key{read_by(desc, pass), pass, engines};
  auto found = lists_.find(key);
  if (found == lists_.end()) {
    ++lists_made_;
    found = lists_.emplace(key, ask(target, desc, pass, engines)).first;
  }
  return found->second;
}

std::shared_ptr<const Execution> PlanCache::plan(const Target& target, const ConvDesc& desc, ConvPass pass,
                                                 const Algorithm& algorithm) {
  const PlanKey key = plan_key(desc, pass, algorithm);
  auto found = plans_.find(key);
  if (found == plans_.end()) {
    ++plans_made_;
    found = plans_.emplace(key, make(target, desc, pass, algorithm)).first;
  }
  const Made& made = found->second;
  require<UnsupportedError>(made.plan != nullptr || !made.unsupported, made.refusal);
  require<Error>(made.plan != nullptr, made.refusal);
  return made.plan;
}

void PlanCache::prepare(std::span<const Target> targets, std::span<const Wanted> calls, Engines engines) {
  // All entries of the map are made before threads start, so that each thread only writes to entries of its own.
  std::vector<std::pair<const ListKey, Listed>*> lists;
  for (const Wanted& call : calls) {
    if (call.algorithm) {
      continue;
    }
    const auto [entry, fresh] = lists_.try_emplace({read_by(call.desc, call.pass), call.pass, engines});
    if (fresh) {
      lists.push_back(&*entry);
    }
  }
  const auto listed_without = [&](std::size_t i, const Target& target) {
    const auto& [desc, pass, which] = lists[i]->first;
    try {
      lists[i]->second = ask(target, desc, pass, which);
    } catch (const UnsupportedError&) {  // cuDNN does not compute this pass: the list stays empty
    }
  };
  try {
    spread(targets, lists.size(), listed_without);
  } catch (...) {
    for (const auto* entry : lists) {
      lists_.erase(ListKey(entry->first));
    }
    throw;
  }
  lists_made_ += static_cast<int>(lists.size());

  std::map<PlanKey, Algorithm> named;
  for (const Wanted& call : calls) {
    if (call.algorithm) {
      named.emplace(plan_key(call.desc, call.pass, *call.algorithm), *call.algorithm);
      continue;
    }
    for (const Algorithm& algorithm : list(targets.front(), call.desc, call.pass, engines).algorithms) {
      named.emplace(plan_key(call.desc, call.pass, algorithm), algorithm);
    }
  }
  std::erase_if(plans_,
                [&](const auto& entry) { return entry.second.plan.use_count() == 1 && !named.contains(entry.first); });
  struct WantedPlan {
    const PlanKey* key;
    Made* made;
    const Algorithm* algorithm;
  };
  std::vector<WantedPlan> wanted;
  for (const auto& [key, algorithm] : named) {
    const auto [entry, fresh] = plans_.try_emplace(key);
    if (fresh) {
      wanted.push_back({&entry->first, &entry->second, &algorithm});
    }
  }
  std::vector<char> left_out(wanted.size(), 0);
  const auto make_one = [&](std::size_t i, const Target& target) {
    const auto& [desc, pass, text] = *wanted[i].key;
    try {
      *wanted[i].made = make(target, desc, pass, *wanted[i].algorithm);
    } catch (const OutOfMemory&) {  // there may be enough memory when the algorithm is planned alone
      left_out[i] = 1;
    }
  };
  const auto forget = [&](bool all) {
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (all || left_out[i] != 0) {
        plans_.erase(PlanKey(*wanted[i].key));
      }
    }
  };
  try {
    spread(targets, wanted.size(), make_one);
  } catch (...) {
    forget(true);
    throw;
  }
  forget(false);
  plans_made_ += static_cast<int>(wanted.size());
}

}  // namespace lockstep::ops::cudnn
