#include <lockstep/nn/run/checkpoint.hpp>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <new>
#include <utility>

#include <lockstep/comm/error.hpp>
#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/runtime/files/atomic_folder.hpp>

namespace lockstep::nn {

RunIdentity identity_of(const Trainer& trainer) {
  RunIdentity identity;
  identity.model = trainer.train_plan().layout().model;
  identity.seed = trainer.options().step.seed;
  const std::int64_t virtual_ranks = trainer.options().step.virtual_ranks;
  identity.ranks = virtual_ranks > 0 ? static_cast<int>(virtual_ranks) : trainer.ranks();
  identity.global_batch = trainer.options().global_batch;
  identity.options = option_texts(trainer.options(), trainer.data());
  identity.layers = trainer.layers();
  identity.choices = trainer.choices();
  for (const comm::Bucket& bucket : trainer.reducer().buckets()) {
    if (virtual_ranks == 0) {
      identity.buckets.push_back(bucket.last);
    }
  }
  return identity;
}

void save_checkpoint(const std::string& dir, Trainer& trainer, comm::Communicator& control, const RunIdentity& identity,
                     const RunProgress& progress, int keep) {
  trainer.train_step().require_not_averaged("save_checkpoint()");
  SpanRecorder::Scope span = trainer.checkpoint_span();
  trainer.reduce_buffers();
  trainer.train_step().synchronize();  // before a copy, which does not look after the communicator
  trainer.doing(control.rank() == 0 ? "writing the checkpoint after step"
                                    : "waiting for rank 0's checkpoint after step");
  write_checkpoint(dir, trainer.context(), trainer.parameters(), control, identity, progress, keep);
  span.end();
}

std::string resume_checkpoint(const std::string& dir, Trainer& trainer, comm::Communicator& control,
                              const RunIdentity& identity, RunProgress& progress) {
  trainer.train_step().require_not_averaged("resume_checkpoint()");
  const CheckpointState saved = read_checkpoint_state(dir);
  const std::string path = existing_checkpoint(dir) + "/" + kStateFile;
  Position position;
  try {
    position = trainer.continued(saved.progress.position, saved.identity.global_batch);
  } catch (DataError& error) {
    error.annotate(path);
    throw;
  }
  const auto require_same = [&](const char* option, const char* begin, const char* end) {
    const std::string before = option_of(saved.identity, option);
    const std::string now = option_of(identity, option);
    require<DataError>(before.empty() || now.empty() || before == now, existing_checkpoint(dir), begin, before, end,
                       now);
  };
  require_same("virtual_ranks", ": the run has ", " virtual ranks, expected ");
  require_same("optimizer", ": the state of optimizer ", ", expected ");
  ParameterSet& parameters = trainer.parameters();
  require<DataError>(static_cast<int>(saved.progress.samples_seen.size()) == saved.identity.ranks, dir, ": ",
                     saved.progress.samples_seen.size(), " entries in samples_seen, expected one for each of the ",
                     saved.identity.ranks, " ranks");
  static_cast<void>(load_state(dir, trainer.context(), parameters, control, saved.identity.ranks));
  const std::vector<double>& all_seen = saved.progress.samples_seen;
  const std::int64_t rows = parameters.statistics_rows();
  std::vector<double> seen(static_cast<std::size_t>(rows));
  if (saved.identity.ranks == control.size() * rows) {
    std::copy_n(all_seen.begin() + control.rank() * rows, rows, seen.begin());
  } else {  // the averages weigh as much as what was averaged
    for (const double samples : all_seen) {
      seen.front() += samples / static_cast<double>(control.size() * rows);
    }
    std::fill(seen.begin(), seen.end(), seen.front());
  }
  trainer.restore(position, seen);
  progress = saved.progress;
  progress.position = position;
  if (saved.identity.ranks != control.size() * rows) {  // as save_checkpoint() wants it
    progress.samples_seen.assign(static_cast<std::size_t>(control.size() * rows), seen.front());
  }
  return differences(saved.identity, identity,
                     {{"training_data", trainer.data().train.name()}, {"test_data", trainer.data().test.name()}});
}

RunProgress resume_if_there(const std::string& dir, Trainer& trainer, comm::Communicator& control,
                            const RunIdentity& identity, std::string* differences) {
  const bool here = control.rank() == 0 && !find_folder(dir).empty();
  RunProgress progress;
  if (comm::all_gather_value(control, here ? 1 : 0).front() != 0) {
    std::string differing;
    std::string failure;
    try {
      differing = resume_checkpoint(dir, trainer, control, identity, progress);
    } catch (const std::bad_alloc&) {
      failure = concat(dir, ": cannot be read: out of host memory");
    } catch (const std::exception& error) {
      failure = error.what();
    }
    const std::vector<std::string> failures = comm::all_gather_text(control, failure);  // a rank may fail alone
    const auto failed = std::find_if(failures.begin(), failures.end(), [](const std::string& f) { return !f.empty(); });
    require<comm::CollectiveError<DataError>>(failed == failures.end(), failed == failures.end() ? "" : *failed);
    if (differences != nullptr) {
      *differences = std::move(differing);
    }
    trainer.require_same_state();
  }
  return progress;
}

}  // namespace lockstep::nn
