#include <lockstep/app/detail/stored_model.hpp>

#include <cmath>
#include <iostream>

#include <lockstep/app/run_summary.hpp>
#include <lockstep/nn/model/model_file.hpp>
#include <lockstep/nn/run/checkpoints/checkpoint_store.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/units.hpp>
#include <lockstep/runtime/files/file.hpp>

namespace lockstep::nn::detail {

void StoredModel::evaluate(const std::vector<RunMetric>& metrics, RunObserver* observer) {
  RunObservers own;
  if (classes != nullptr) {
    own.add(*classes);
  }
  RunObservers both;
  both.add(own);
  if (observer != nullptr) {
    both.add(*observer);
  }
  evaluate_one(site.options.evaluate, "", metrics, both);
  if (const std::string path = average(); !path.empty()) {
    evaluate_one(path, "ema ", {}, own);
  }
}

std::string StoredModel::average() {
  return site.text_of_first([&] {
    const std::string file = concat(site.options.evaluate, '/', kAverageFile);
    return file_exists(file) ? file : "";
  });
}

void StoredModel::evaluate_one(const std::string& path, const char* label, const std::vector<RunMetric>& metrics,
                               RunObserver& observer) {
  site.session.agree([&] {
    site.doing("reading the checkpoint");
    naming_others(path, [&] { load_model(path, site.place.context(), trainer.parameters()); });
    site.doing("waiting for other ranks");
  });
  site.session.agree([&] { trainer.require_same_state(); });
  const EvaluationEvent test = run_evaluation(trainer, site.session.control(), metrics, observer);
  if (site.first) {
    print(label, test);
  }
}

void StoredModel::print(const char* label, const EvaluationEvent& test) const {
  std::cout << label << "test loss " << (std::isnan(test.loss) ? "-" : concat(test.loss));
  if (!trainer.evaluation_plan().layout().regression) {
    std::cout << "  accuracy " << value_text("test_accuracy", test.accuracy);
    if (site.options.trainer.step.plan.top_k > 0) {
      std::cout << ", top " << site.options.trainer.step.plan.top_k << ' '
                << value_text("test_accuracy", test.top_k_accuracy);
    }
    std::cout << "  (" << digits(test.correct, 0) << " of " << digits(test.samples, 0) << ")";
  }
  for (const auto& [name, value] : test.metrics) {
    std::cout << "  " << name << ' ' << value_text(name, value);
  }
  std::cout << '\n';
  if (classes != nullptr) {
    std::cout << text_of(classes->report(), inputs.class_names);
  }
  std::cout << std::flush;
}

}  // namespace lockstep::nn::detail
