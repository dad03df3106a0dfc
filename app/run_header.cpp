#include <lockstep/app/run_header.hpp>

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <set>
#include <sstream>

#include <lockstep/nn/plan/precision.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/text.hpp>
#include <lockstep/runtime/base/units.hpp>
#include <lockstep/runtime/base/version.hpp>

namespace lockstep::nn {

namespace {

/// Returns `amount`, a number of bytes, as text in kB or MB (powers of 1000). memory_now() uses powers of 1024.
template <class Amount>
std::string decimal_bytes(Amount amount) {
  const auto bytes = static_cast<double>(amount);
  std::ostringstream out;
  if (bytes < 1e5) {
    out << std::fixed << std::setprecision(1) << bytes / 1e3 << " kB";
  } else {
    out << std::fixed << std::setprecision(bytes < 1e7 ? 2 : 0) << bytes / 1e6 << " MB";
  }
  return out.str();
}

/// Returns a text about the schedule of the learning rate, for example "cosine, warm-up 5 steps".
std::string schedule_text(const Schedule& schedule) {
  std::ostringstream out;
  out << name_of(schedule.kind);
  if (schedule.kind == Schedule::Kind::polynomial) {
    out << " of power " << schedule.power;
  }
  const bool ends = schedule.kind == Schedule::Kind::cosine || schedule.kind == Schedule::Kind::polynomial;
  if (ends && schedule.end > 0) {
    out << " to " << schedule.end;
  }
  out << ", ";
  if (schedule.warmup != Schedule::WarmUp::linear) {
    out << name_of(schedule.warmup) << ' ';
  }
  out << "warm-up " << counted(schedule.warmup_steps, "step");
  if (schedule.warmup_factor) {
    out << " from " << *schedule.warmup_factor;
  }
  return out.str();
}

/// Returns a text about the device. For a GPU, a second line describes the threads on the host.
std::string compute_text(const comm::RankContext& place, Trainer& trainer) {
  if (!place.on_gpu()) {
    return concat("cpu, ", counted(place.threads(), "thread"), " a rank (", place.threads_from(), "); ",
                  place.share().description());
  }
  const std::string& obstacle = trainer.graph_obstacle();
  return concat(to_string(*place.gpu()), "; steps as a CUDA graph ", obstacle.empty() ? "on" : "off: " + obstacle,
                trainer.context().stream().launches_dependently() ? "; dependent launches" : "", "\n             ",
                place.share().description(), "; ", place.binding());
}

/// Prints how many calls the backward pass recomputes, how much memory this saves, and its cost. Prints nothing if
/// `wanted` is off.
void print_recomputed(std::ostream& out, const Plan& plan, Recompute wanted) {
  const Recomputed& again = plan.recomputed();
  if (wanted == Recompute::off) {
    return;
  }
  out << "  recompute  " << name_of(wanted) << ": ";
  if (again.calls == 0) {
    out << "nothing, as no plan takes less memory\n";
    return;
  }
  const auto more = [](double part, double all) { return std::lround(100 * part / std::max(all - part, 1.0)); };
  out << "workspace " << decimal_bytes(plan.workspace_bytes()) << " instead of "
      << decimal_bytes(again.workspace_bytes_without) << "; " << counted(again.calls, "call") << " again in backward, "
      << more(again.flops, plan.flops()) << " % more operations, " << more(again.bytes, plan.bytes())
      << " % more bytes moved\n";
}

/// Returns a text that says how a compression sends the gradients of a step. Empty if there is no compression.
std::string sent_text(const TrainingOptions& o, const TrainerOptions& options, const comm::GradientReducer& reducer) {
  if (o.compress == "none" && options.step.sums.hook == nullptr) {
    return {};
  }
  const std::string name = options.step.sums.hook != nullptr ? options.step.sums.hook->name() : o.compress;
  const std::int64_t sent = reducer.sent_bytes();
  return concat(
      ", sent ", options.step.sums.hook != nullptr ? "by the hook " : "as ", name,
      sent < 0 ? std::string()
               : concat(": ", decimal_bytes(sent), " instead of ", decimal_bytes(reducer.gradient_bytes()), " a step"));
}

/// If some parameters of `model` are frozen, prints how many.
void print_frozen(std::ostream& out, const Model& model) {
  std::int64_t frozen = 0;
  std::set<std::string> layers;
  for (const Model::Parameter& parameter : model.parameters()) {
    if (!parameter.spec.trainable) {
      frozen += parameter.spec.shape.numel();
      layers.insert(parameter.spec.name.substr(0, parameter.spec.name.rfind('.')));
    }
  }
  if (frozen > 0) {
    out << "  frozen     " << frozen << " of these parameters, in "
        << counted(static_cast<std::int64_t>(layers.size()), "layer") << '\n';
  }
}

void print_strategy(std::ostream& out, const NamedStrategy& strategy, Trainer& trainer) {
  const ParameterSet& set = trainer.parameters();
  const std::size_t whole = set.state_names().size() * set.gradients().bytes();
  if (strategy.strategy == Strategy::zero1) {
    out << "  strategy   zero1: each rank keeps " << decimal_bytes(set.state_bytes()) << " of the "
        << decimal_bytes(whole) << " of optimizer states\n";
  }
  if (!strategy.note.empty()) {
    out << "  strategy   " << strategy.note << '\n';
  }
}

void print_virtual_ranks(std::ostream& out, Trainer& trainer) {
  const std::int64_t all = trainer.options().step.virtual_ranks;
  if (all == 0) {
    return;
  }
  const TrainStep& step = trainer.train_step();
  out << "  world      " << counted(all, "virtual rank") << ", " << all / trainer.ranks()
      << " a rank; one compute thread, no overlap; gradients are added in one tree, which takes "
      << counted(step.tree_arenas(), "arena") << " of gradients, " << decimal_bytes(step.tree_bytes()) << '\n';
}

}  // namespace

std::optional<MemorySummary> memory_now(Context& context) {
  try {
    return memory_summary(context);
  } catch (const UnsupportedError&) {
    return std::nullopt;
  }
}

void print_header(std::ostream& out, const TrainingOptions& o, const TrainingInputs& inputs,
                  const ResolvedTraining& resolved, comm::Session& session, const comm::RankContext& place,
                  Trainer& trainer) {
  const Plan& plan = trainer.train_plan();
  const TrainerOptions& options = trainer.options();
  const TrainStepOptions& step = options.step;
  const comm::GradientReducer& reducer = trainer.reducer();
  out << build_description() << '\n';
  if (!o.recipe.empty()) {
    out << "  recipe     " << o.recipe << '\n';
  }
  out << "  ranks      " << session.size() << " on " << counted(session.nodes(), "node") << ", "
      << session.description() << '\n'
      << "  launch     " << session.launch().description() << '\n'
      << "  compute    " << compute_text(place, trainer) << '\n';
  if (!place.device().note.empty()) {
    out << "             " << place.device().note << '\n';
  }
  out << "  model      " << (inputs.model_text.empty() ? inputs.model.name() : inputs.model_text) << ", "
      << inputs.model.parameter_count() << " parameters, " << name_of(Precision{step.plan.dtype, step.plan.tf32})
      << '\n';
  print_frozen(out, inputs.model);
  for (const auto& [label, text] : inputs.about) {
    out << "  " << std::left << std::setw(11) << label << text << '\n';
  }
  const std::int64_t per_epoch = trainer.batches_per_epoch();
  // --steps may end the run earlier than --epochs.
  const std::int64_t epochs = std::min(o.run.epochs, (resolved.total_steps + per_epoch - 1) / per_epoch);
  out << "  batch      " << resolved.rules.batch_text() << ", " << counted(trainer.batches_per_epoch(), "step")
      << " an epoch, " << counted(epochs, "epoch") << ", " << counted(resolved.total_steps, "step") << " in all; "
      << counted(resolved.rules.workers, "worker") << " a rank\n"
      << "  optimizer  " << name_of(step.optimizer) << ", learning rate " << options.schedule.base << " ("
      << schedule_text(options.schedule) << "), " << text_of(step.optimizer, trainer.parameters()) << ", weight decay "
      << step.weight_decay << (step.decay_all ? "" : ", none on biases and norms") << '\n';
  if (const std::string groups = text_of(step.groups); !groups.empty()) {
    out << "             " << groups << '\n';
  }
  if (step.average.on()) {
    out << "  average    of the weights, decay " << text_of(step.average) << '\n';
  }
  out << "  memory     " << decimal_bytes(trainer.planned_bytes()) << " a rank; workspace "
      << decimal_bytes(plan.workspace_bytes()) << ", " << decimal_bytes(plan.unshared_bytes()) << " without reuse\n";
  if (const std::optional<MemorySummary> memory = memory_now(trainer.context())) {
    out << "             " << to_string(*memory) << '\n';
  }
  print_recomputed(out, plan, step.plan.recompute);
  if (!plan.joins().empty()) {
    out << "  beside     " << counted(static_cast<std::int64_t>(plan.joins().size()), "weight gradient")
        << (trainer.context().device().kind == DeviceKind::cuda
                ? " on a second stream\n"
                : ", which a host computes one after the other (--weights-beside)\n");
  }
  out << "  gradients  " << reducer.buckets().size() << " bucket(s):";
  for (const comm::Bucket& bucket : reducer.buckets()) {
    out << ' ' << decimal_bytes((bucket.end - bucket.begin) * static_cast<std::int64_t>(size_of(reducer.sent_as())));
  }
  out << (o.reduce_dtype == "fp32" ? "" : concat(", sent as ", o.reduce_dtype)) << sent_text(o, options, reducer)
      << (step.sums.order == comm::SumOrder::ranks ? ", added in rank order" : "")
      << (o.cost.empty() ? "" : concat(", by ", o.cost)) << "; overlap with backward " << place.overlap_reason()
      << '\n';
  if (!place.on_gpu() && !session.sums().empty()) {
    out << "  sums       " << session.sums() << '\n';
  }
  print_virtual_ranks(out, trainer);
  print_strategy(out, strategy_named(o.strategy), trainer);
  if (step.sync_batch_norm) {
    out << "  batch norm statistics over the micro-batches of all ranks\n";
  }
  for (const std::string& warning : resolved.warnings) {
    out << "  warning    " << warning << '\n';
  }
  out << std::flush;
}

void print_choices(std::ostream& out, const ChoiceReport& report, const std::string& file) {
  out << "  libraries  " << report.calls << " calls of " << report.distinct << " kinds, " << report.timed
      << " timed in " << std::lround(report.seconds * 1000) << " ms" << (file.empty() ? "" : ", kept in " + file)
      << '\n';
  if (!report.refused.empty()) {
    out << "             " << report.refused.size()
        << (report.refused.size() == 1 ? " candidate was" : " candidates were") << " refused (config.json), first "
        << report.refused.front() << '\n';
  }
  out << std::flush;
}

void print_verified(std::ostream& out, const ChoiceVerifier& verifier) {
  out << "  verified   " << verifier.compared() << " calls of libraries in " << std::lround(verifier.seconds() * 1000)
      << " ms, " << verifier.refused().size() << " refused\n";
  for (const std::string& refused : verifier.refused()) {
    out << "             " << refused << '\n';
  }
  out << std::flush;
}

void print_resumed(std::ostream& out, const std::string& from, const RunProgress& progress,
                   const std::string& differences) {
  const Position& at = progress.position;
  out << "  resuming   " << from << " at epoch " << at.epoch << ", batch " << at.batch
      << (at.skipped > 0 ? concat(" after ", at.skipped, " samples of batches of another size") : std::string())
      << ", step " << at.step << '\n';
  std::istringstream lines(differences);
  for (std::string line; std::getline(lines, line);) {
    out << "  differs    " << displayed(line) << " (the run continues, not bit for bit)\n";
  }
  out << std::flush;
}

}  // namespace lockstep::nn
