#include <lockstep/app/detail/run_config.hpp>

#include <algorithm>
#include <string>

#include <lockstep/nn/plan/choice_verifier.hpp>
#include <lockstep/nn/plan/library_choices.hpp>
#include <lockstep/runtime/base/version.hpp>

namespace lockstep::nn::detail {

namespace {

Json json_of(const ChoiceReport& report) {
  return Json::Object{{"calls", report.calls},
                      {"distinct", report.distinct},
                      {"timed", report.timed},
                      {"seconds", report.seconds},
                      {"refused", Json::Array(report.refused.begin(), report.refused.end())}};
}

Json json_of(const ChoiceVerifier* verifier) {
  if (verifier == nullptr) {
    return {};
  }
  const auto& refused = verifier->refused();
  return Json::Object{{"compared", verifier->compared()},
                      {"seconds", verifier->seconds()},
                      {"refused", Json::Array(refused.begin(), refused.end())}};
}

}  // namespace

Json config_of(const RunSite& site, const PreparedTraining& made, const TrainingInputs& inputs) {
  const TrainingOptions& options = site.options;
  const RunIdentity& identity = made.identity;
  Json::Object config{{"lockstep", build_description()},
                      {"model", identity.model},
                      {"seed", identity.seed},
                      {"ranks", site.session.size()},
                      {"nodes", site.session.nodes()},
                      {"threads_per_rank", identity.threads},
                      {"global_batch", identity.global_batch},
                      {"options", Json::Object(identity.options.begin(), identity.options.end())},
                      {"overlap", site.place.overlap_reason()},
                      {"recompute", std::string(name_of(options.trainer.step.plan.recompute))},
                      {"weights_beside", options.trainer.step.weights_beside},
                      {"dependent_launches", options.dependent_launches},
                      {"bucket_mb", options.bucket_mb},
                      {"cost", options.cost},
                      {"library_choices", made.tuned ? json_of(*made.tuned) : Json()},
                      {"library_verification", json_of(made.resolved.trainer.step.plan.verifier.get())},
                      {"workers", made.resolved.rules.workers},
                      {"log_every", options.run.log_every},
                      {"report_waits", options.report_waits},
                      {"watchdog", options.watchdog},
                      {"top_k", options.trainer.step.plan.top_k},
                      {"recipe", options.recipe},
                      {"init", options.init},
                      {"resume", options.resume}};
  if (const std::string& job = site.session.launch().attempt.job; !job.empty()) {
    config["job"] = job;
  }
  Json::Object chosen;  // options that the user gave, for --config of another run; key: name with hyphens
  for (const auto& [name, text] : options.chosen) {
    std::string key = name;
    std::ranges::replace(key, '_', '-');
    chosen[key] = text;
  }
  config["chosen"] = chosen;
  config.insert(inputs.config.begin(), inputs.config.end());
  return config;
}

}  // namespace lockstep::nn::detail
