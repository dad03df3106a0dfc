#include <lockstep/app/detail/starting_point.hpp>

#include <chrono>
#include <filesystem>
#include <iostream>
#include <vector>

#include <lockstep/app/run_header.hpp>
#include <lockstep/nn/run/checkpoints/best_checkpoints.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/files/atomic_folder.hpp>

namespace lockstep::nn::detail {

StartingPoint::StartingPoint(RunSite& site, RestartCopies& copies) : site_(site), o_(site.options) {
  site_.doing("looking for checkpoints");
  look_for_earlier_start();
  find_resumed();
  o_.evaluate = best_in(o_.evaluate);
  // An evaluation uses no batches of the training set, so a training set smaller than one batch is no error. keep_last
  // allows such a set.
  o_.trainer.keep_last = o_.trainer.keep_last || !o_.evaluate.empty();
  o_.init = best_in(o_.init);
  if (const std::string copy = copies.find(); !copy.empty()) {
    resumed_ = copy;
    o_.resume = "auto";
    o_.init.clear();
  }
  read_saved();
}

void StartingPoint::look_for_earlier_start() {
  // Locks the folder before anything else. Only one run may write to a folder, and the code below reads files that an
  // earlier run has left in the folder. The folder may be missing if there was no run yet.
  const comm::Attempt& attempt = site_.session.launch().attempt;
  double found = 0;  // 1: an earlier start of this job has written to the folder; 2: it has written a checkpoint, too
  site_.session.agree([&] {
    if (!site_.first || !trains()) {
      return;
    }
    if (attempt.number > 0 || !o_.resume.empty()) {  // ranks of a killed job may hold the lock for a moment
      constexpr std::chrono::seconds kEnding{30};
      constexpr std::chrono::seconds kKilled{10};
      site_.files.wait_for_lock(attempt.number > 0 ? kEnding : kKilled);
    }
    site_.files.lock_if_used(o_.out);
    const bool used = attempt.number > 0 && RunFolder::job_of(o_.out) == attempt.job;
    const bool names_one = !o_.resume.empty() && o_.resume != "auto";
    if (used && !(names_one && RunFolder::rolls_back(o_.out))) {
      found = CheckpointStore(o_.out).newest().empty() ? 1 : 2;
    }
  });
  found = site_.number_of_first(found);
  o_.overwrite = o_.overwrite || found > 0;
  if (found > 1) {
    o_.resume = "auto";
  }
}

void StartingPoint::find_resumed() {
  if (o_.resume != "auto") {
    resumed_ = site_.text_of_first([&] { return meant_checkpoint(o_.resume); });
    return;
  }
  // Rank 0, which writes the checkpoints, decides whether there is a checkpoint to continue from. Every rank then reads
  // the checkpoint of this name, perhaps from its own file system.
  resumed_ = site_.text_of_first([&] { return CheckpointStore(o_.out).newest(); });
  if (!resumed_.empty()) {
    o_.init.clear();
  }
}

std::string StartingPoint::best_in(const std::string& path) {
  return site_.text_of_first([&] {
    const std::string found = meant_checkpoint(path);
    const CheckpointStore store(std::filesystem::path(found).parent_path().string());
    const std::string best = store.path(CheckpointStore::kBest);
    return CheckpointStore(path).has(found) && !find_folder(best).empty() ? best : found;
  });
}

void StartingPoint::read_saved() {
  site_.session.agree([&] {
    const std::string source = o_.evaluate.empty() ? resumed_ : checkpoint_folder(o_.evaluate);
    if (!source.empty()) {
      naming_others(source, [&] { saved_ = read_checkpoint_state(source); });
    }
    if (site_.first && trains()) {
      require<UsageError>(!is_checkpoint(o_.out), "--out ", o_.out,
                          " is a checkpoint, expected the folder of results that it is in");
      if (!o_.overwrite && !CheckpointStore(o_.out).has(resumed_)) {
        RunFolder::require_no_checkpoints(o_.out);
      }
    }
    site_.files.name_holder();
  });
}

RunProgress StartingPoint::load(const TrainingInputs& inputs, Trainer& trainer, const RunIdentity& identity) {
  comm::Session& session = site_.session;
  RunProgress progress;
  std::string differences;
  std::vector<std::string> head;  // names of tensors that --init has not changed
  session.agree([&] {
    site_.doing("reading the checkpoint");
    if (!o_.init.empty()) {
      head = load_pretrained(o_.init, site_.place.context(), inputs.model, trainer.parameters());
    } else if (!resumed_.empty()) {
      naming_others(resumed_,
                    [&] { differences = resume_checkpoint(resumed_, trainer, session.control(), identity, progress); });
    }
    site_.doing("waiting for other ranks");
  });
  session.agree([&] { trainer.require_same_state(); });
  if (site_.first && !head.empty()) {
    std::cout << "  head       " << o_.init << " has another number of classes; these tensors are not taken from it:";
    for (const std::string& name : head) {
      std::cout << ' ' << name;
    }
    std::cout << '\n';
  }
  if (site_.first && !resumed_.empty()) {
    print_resumed(std::cout, resumed_, progress, differences);
  }
  settle_best(resolved(inputs.best, trainer.options().step.average.on(), trainer.evaluation_plan().layout().regression),
              progress);
  return progress;
}

void StartingPoint::settle_best(const BestBy& best, RunProgress& progress) {
  std::optional<double> value = progress.best;
  site_.session.agree([&] {
    if (!site_.first) {
      return;
    }
    const Position& at = progress.position;
    const CheckpointStore store(o_.out);
    const bool another = store.has(resumed_) && !store.is_last(resumed_);
    const bool done = at.epoch >= o_.run.epochs || (o_.run.steps > 0 && at.step >= o_.run.steps);
    rolls_back_ = another && !(done && !find_folder(store.path(CheckpointStore::kLast)).empty());
    if (another && !rolls_back_) {  // the run has no steps left, so it overwrites no checkpoint
      return;
    }
    const BestOfResumed found = best_of_resumed(store, progress, best, rolls_back_);
    value = found.value;
    if (!resumed_.empty()) {
      site_.files.resumes({.event = {{"from", resumed_}, {"epoch", at.epoch}, {"step", at.step}},
                           .from_another = rolls_back_,
                           .best_from = found.copy_from});
    }
    if (progress.best && !value) {
      std::cout << "  best       " << o_.out << "/best is not the best of " << resumed_
                << "; the next evaluation will be\n"
                << std::flush;
    }
  });
  rolls_back_ = site_.number_of_first(rolls_back_ ? 1 : 0) != 0;
  const bool known = site_.number_of_first(value ? 1 : 0) != 0;
  const double number = site_.number_of_first(value.value_or(0));
  progress.best = known ? std::optional(number) : std::nullopt;
}

}  // namespace lockstep::nn::detail
