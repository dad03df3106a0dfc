#include <lockstep/app/detail/trainer_maker.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <map>
#include <set>
#include <sstream>
#include <vector>

#include <lockstep/app/run_header.hpp>
#include <lockstep/comm/cost/cost_file.hpp>
#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/nn/plan/gpu_prediction.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/text.hpp>

namespace lockstep::nn::detail {

void TrainerMaker::make(const TrainingInputs& inputs) {
  resolve_options(inputs);
  identify(inputs);
  choose_calls(inputs.model);
  site_.doing("making the trainer");
  site_.session.agree([&] {
    trainer_.emplace(site_.place.context(), site_.ranks(), inputs.model, TrainingData{*inputs.train, *inputs.test},
                     made_.resolved.trainer);
  });
  made_.identity.layers = trainer_->layers();
  made_.identity.choices = trainer_->train_step().choices();
  made_.identity.buckets = identity_of(*trainer_).buckets;
}

void TrainerMaker::resolve_options(const TrainingInputs& inputs) {
  const std::string cost = cost_text();
  site_.session.agree([&] {
    made_.resolved =
        resolve(o_, inputs.train->size(), inputs.rate, site_.session.size(), site_.session.rank(), site_.place.share());
    TrainerOptions& options = made_.resolved.trainer;
    options.step.plan.augment = inputs.augment;
    if (inputs.model.input_kind() == InputKind::images && !inputs.statistics_given) {
      if (!o_.evaluate.empty() && saved_) {
        take_statistics(saved_->identity, o_.evaluate, options.step.plan.augment);
      } else if (!o_.init.empty() && is_checkpoint(o_.init)) {
        take_statistics(read_checkpoint_state(o_.init).identity, o_.init, options.step.plan.augment);
      }
    }
    options.step.plan.augment.seed = o_.trainer.step.seed;
    if (!o_.describe_gpu.empty()) {
      require<UsageError>(!site_.place.on_gpu(), "--describe-gpu is ", o_.describe_gpu,
                          " on a GPU, for which the plan of that GPU is printed; expected --devices cpu");
      options.step.plan.fusions = Fusions::on;
      options.step.plan.chip = known_gpu(o_.describe_gpu).chip;
      options.step.plan.norms_in_convolutions = o_.fused_norms;
    }
    if (!o_.evaluate.empty()) {
      options.step.average = {};
    }
    options.step.plan.two_labels = inputs.two_labels;
    options.step.plan.verifier =
        o_.verify_choices ? std::make_shared<ChoiceVerifier>() : ChoiceVerifier::from_environment();
    if (inputs.change) {
      inputs.change(options);
    }
    const auto& nodes = inputs.model.nodes();
    if (options.step.sync_batch_norm && std::none_of(nodes.begin(), nodes.end(), [](const Node& node) {
          return node.layer != nullptr && node.layer->kind() == "batch_norm";
        })) {
      options.step.sync_batch_norm = false;
      made_.resolved.warnings.push_back("--sync-batch-norm: the model has no batch norm, so nothing is synchronised");
    }
    if (!o_.cost.empty()) {
      const comm::CostFile file = comm::parse_cost(cost, o_.cost);
      const auto path = site_.place.on_gpu() ? comm::GradientPath::nccl : comm::GradientPath::host;
      options.step.buckets.all_reduce =
          comm::all_reduce_cost(file, path, site_.session.size(), site_.session.nodes(), o_.cost);
      if (const auto& errors = file.find(comm::all_reduce_name(path))->held_out; errors.high()) {
        made_.resolved.warnings.push_back(concat("--cost ", o_.cost, ": not reliable, its all-reduces miss by ",
                                                 std::lround(100 * errors.median), " % in the median, ",
                                                 std::lround(100 * errors.p90),
                                                 " % at the 90th percentile; measure again on an idle machine"));
      }
    }
  });
}

void TrainerMaker::take_statistics(const RunIdentity& trained_with, const std::string& source,
                                   ops::AugmentDesc& augment) const {
  const auto take = [&](const char* name, auto& values) {
    const auto found = trained_with.options.find(name);
    if (found == trained_with.options.end()) {
      return;
    }
    std::istringstream in(found->second);
    auto trained = values;
    for (auto& value : trained) {
      in >> value;
    }
    require<DataError>(!in.fail(), source, ": ", name, " is '", found->second, "', expected three numbers");
    const bool taken = !o_.evaluate.empty();
    if (site_.first && trained != values) {
      std::cout << "  warning    the " << name << " of the training images at hand is not that of " << source << ", "
                << displayed(found->second) << (taken ? ", which is taken" : ", which --mean and --std can give")
                << '\n';
    }
    values = taken ? trained : values;
  };
  take("mean", augment.mean);
  take("std", augment.std);
}

std::string TrainerMaker::cost_text() {
  return site_.text_of_first([&] { return o_.cost.empty() ? "" : comm::read_cost_text(o_.cost); });
}

void TrainerMaker::identify(const TrainingInputs& inputs) {
  const std::vector<double> threads = comm::all_gather_value(site_.session.control(), site_.place.threads());
  const auto [fewest, most] = std::minmax_element(threads.begin(), threads.end());
  if (*fewest != *most) {
    made_.resolved.warnings.push_back(concat("ranks compute with ", *fewest, " to ", *most,
                                             " threads: a resume gives the same bits only where each rank has as many "
                                             "again"));
  }
  made_.identity.model = inputs.model.name();
  made_.identity.seed = o_.trainer.step.seed;
  const TrainerOptions& options = made_.resolved.trainer;
  made_.identity.ranks =
      options.step.virtual_ranks > 0 ? static_cast<int>(options.step.virtual_ranks) : site_.session.size();
  made_.identity.threads = site_.place.threads();
  made_.identity.global_batch = made_.resolved.trainer.global_batch;
  made_.identity.options =
      option_texts(site_.place.context().device(), made_.resolved.trainer, {*inputs.train, *inputs.test});
  made_.identity.options["epochs"] = std::to_string(o_.run.epochs);
  if (!o_.freeze.empty()) {
    made_.identity.options["frozen"] = joined(std::set<std::string>(o_.freeze.begin(), o_.freeze.end()), ", ");
  }
  made_.identity.options.insert(inputs.options.begin(), inputs.options.end());
  // On hosts, the identity names the library's order of additions if the results depend on this order. Gradients depend
  // on this order with SumOrder::library. Gradient norms depend on this order with zero1.
  const bool norms = options.step.strategy == Strategy::zero1 &&
                     (options.step.optimizer.clip_norm > 0 || traits_of(options.step.optimizer.kind).layer_norms);
  const std::string sums = comm::broadcast_text(site_.session.control(), site_.session.sums());
  if (!sums.empty() && !site_.place.on_gpu() && options.step.virtual_ranks == 0 &&
      (options.step.sums.order == comm::SumOrder::library || norms)) {
    made_.identity.options["sums"] = sums + (site_.session.nodes() > 1 ? nodes_text() : "");
  }
  if (site_.place.on_gpu()) {  // takes rank 0's GPU, so that all ranks store the same identity
    made_.identity.options["device"] = comm::broadcast_text(site_.session.control(), site_.place.gpu()->name);
  }
}

std::string TrainerMaker::nodes_text() {
  const std::vector<double> nodes = comm::all_gather_value(site_.session.control(), site_.session.node());
  std::map<double, std::string> ranks;  // key: node; value: numbers of its ranks as text, for example " 0-3,8-11"
  for (std::size_t begin = 0, end = 0; begin < nodes.size(); begin = end) {
    while (end < nodes.size() && nodes[end] == nodes[begin]) {
      ++end;
    }
    std::string& of_node = ranks[nodes[begin]];
    of_node += concat(of_node.empty() ? " " : ",", begin, end > begin + 1 ? concat('-', end - 1) : std::string());
  }
  std::string text = ", ranks of nodes";
  for (const auto& [node, of_node] : ranks) {
    text += of_node;
  }
  return text;
}

void TrainerMaker::choose_calls(const Model& model) {
  const bool hold = saved_ && o_.evaluate.empty() && choices_hold(saved_->identity, made_.identity);
  const std::vector<double> holds = comm::all_gather_value(site_.session.control(), hold ? 1 : 0);
  if (saved_ && *std::min_element(holds.begin(), holds.end()) == 1) {  // `hold` is true on every rank
    made_.resolved.trainer.step.plan.choices = saved_->identity.choices;
    // A stored choice that a library cannot run here is no error, but is reported as a difference to the earlier run.
    made_.resolved.trainer.step.plan.choices_required = false;
  }
  // With virtual ranks, runs on different numbers of ranks must give the same bits. New timings could change the bits,
  // unless a file keeps the choices.
  const bool times = site_.place.on_gpu() && o_.trainer.step.virtual_ranks == 0;
  const bool wanted = o_.tune == Tune::automatic ? times || !o_.choices.empty() : o_.tune != Tune::off;
  const TrainerOptions& options = made_.resolved.trainer;
  const bool timed = wanted && o_.evaluate.empty() && options.step.plan.choices.empty();
  const bool prepares = site_.place.on_gpu() && (timed || !options.step.plan.choices.empty());
  if (!timed && !prepares) {
    return;
  }
  if (site_.watchdog != nullptr) {
    site_.watchdog->pause("timing library calls");  // timing may take minutes
  }
  const std::int64_t shares = std::max<std::int64_t>(site_.session.size(), options.step.virtual_ranks);
  const std::int64_t share = partition_of(options.global_batch, shares, 0).count;
  std::vector<LibraryPlan> plans;
  site_.session.agree([&] {
    if (site_.first || prepares) {
      plans = library_calls(site_.place.context(), model, partition_of(share, options.accumulate, 0).count,
                            options.accumulate, options.step.plan);
    }
  });
  if (timed) {
    ChoiceOptions choice;
    choice.workspace_limit = static_cast<std::size_t>(o_.workspace_mb) * 1000000;
    choice.deterministic = true;  // a repeated run must give the same bits
    choice.engines = o_.tune == Tune::fast ? ops::Engines::precompiled : ops::Engines::all;
    choice.progress = [said = 0.0](int done, int of, double seconds) mutable {
      constexpr double kEvery = 2;  // seconds between two lines of progress, so a short search prints none
      if (seconds - said >= kEvery) {
        said = seconds;
        std::cout << "tuning: " << done << " of " << of << " calls, " << std::lround(seconds) << " s\n" << std::flush;
      }
    };
    made_.tuned.emplace();
    made_.resolved.trainer.step.plan.choices =
        choose_libraries(site_.session.control(), site_.place.context(), plans, choice, o_.choices, &*made_.tuned);
  }
  if (prepares) {  // prepares calls in parallel, so that the trainer plans quickly
    site_.session.agree([&] { prepare_choices(site_.place.context(), plans, options.step.plan.choices); });
  }
}

}  // namespace lockstep::nn::detail
