#include <lockstep/app/detail/restart_copies.hpp>

#include <cstddef>
#include <cstdint>
#include <iostream>

#include <lockstep/nn/run/checkpoints/checkpoint_store.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::nn::detail {

std::string RestartCopies::find() {
  if (o_.run.copy_every <= 0 || o_.dry_run || !o_.evaluate.empty()) {
    return {};
  }
  comm::Session& session = site_.session;
  const comm::Attempt& attempt = session.launch().attempt;
  session.agree([&] {
    require<UsageError>(!attempt.job.empty(), "--copy-every is ", o_.run.copy_every,
                        ", which is for restarts: expected --max-restarts above 0");
  });
  site_.doing("looking for copies in memory");
  copies_.emplace(
      session.control(),
      MemoryCheckpoints::Place{.job = attempt.job, .node = session.node(), .local_rank = session.local_rank()},
      [this](const std::string& line) { site_.files.note("warning: " + line); });
  const std::optional<std::int64_t> newest = attempt.number > 0 ? copies_->find() : std::nullopt;
  const double last =
      site_.first ? static_cast<double>(step_if_valid(CheckpointStore(o_.out).newest()).value_or(-1)) : 0;
  const double on_disk = site_.number_of_first(last);
  return newest && static_cast<double>(*newest) > on_disk ? copies_->newest() : "";
}

void RestartCopies::begin(const std::string& source, Trainer& trainer, const RunIdentity& identity,
                          const RunProgress& progress) {
  if (!copies_) {
    return;
  }
  const bool last_start = site_.session.launch().attempt.number >= o_.restarts;
  // At the last start, settle() below deletes the copy from which the run has read its state. So the state is saved as
  // a checkpoint first.
  if (last_start && source == copies_->newest()) {
    save_checkpoint(CheckpointStore(o_.out).path(CheckpointStore::kLast), trainer, site_.session.control(), identity,
                    progress, o_.run.keep);
  }
  copies_->settle(last_start);
  const ParameterSet& parameters = trainer.parameters();
  const std::size_t states = parameters.state_names().size() + 1;
  std::size_t own = 0;  // bytes of a rank's own states, which differ between ranks
  for (const State& state : parameters.states().all()) {
    const bool differs = state.sharing == Sharing::of_rank || state.sharing == Sharing::sum_of_ranks;
    own += differs ? state.view.bytes() : 0;
  }
  const std::size_t bytes = parameters.values().bytes() * states + 2 * parameters.evaluation_buffer_arena().bytes() +
                            own * static_cast<std::size_t>(site_.session.size());
  if (copies_->on()) {
    copies_->require_room(bytes);
  }
  if (site_.first && copies_->on()) {
    std::cout << "  copies     every " << o_.run.copy_every << " steps in " << kCopiesRoot << " of "
              << (site_.session.nodes() > 1 ? "2 nodes" : "this node") << ", for restarts\n"
              << std::flush;
  }
}

void RestartCopies::add_to(RunOptions& options, Trainer& trainer, const RunIdentity& identity) {
  options.copy_every = copies_ && copies_->on() ? o_.run.copy_every : 0;
  options.copy = [&](const RunProgress& at) { copies_->save(trainer, identity, at); };
}

void RestartCopies::finish() {
  if (copies_) {
    copies_->finish();
  }
}

}  // namespace lockstep::nn::detail
