#include <lockstep/nn/run/checkpoint.hpp>

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
  identity.options = option_texts(trainer.context().device(), trainer.options(), trainer.data());
  identity.layers = trainer.layers();
  identity.choices = trainer.train_step().choices();
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
  trainer.train_step().synchronize();  // synchronize() checks the communicator while it waits; the copies below do not
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
  progress = saved.progress;
  progress.position = position;
  std::vector<double>& seen = progress.samples_seen;
  const std::int64_t rows = parameters.statistics_rows();
  const std::int64_t all = control.size() * rows;
  if (saved.identity.ranks != all) {  // the number of ranks has changed, so each rank gets an equal part of the sum
    double each = 0;
    for (const double samples : seen) {
      each += samples / static_cast<double>(all);
    }
    seen.assign(static_cast<std::size_t>(all), each);
  }
  const auto own = seen.begin() + control.rank() * rows;
  trainer.restore(position, {own, own + rows});
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
    // An error on any rank becomes an error on all ranks.
    for (const std::string& each : comm::all_gather_text(control, failure)) {
      require<comm::CollectiveError<DataError>>(each.empty(), each);
    }
    if (differences != nullptr) {
      *differences = std::move(differing);
    }
    trainer.require_same_state();
  }
  return progress;
}

}  // namespace lockstep::nn
