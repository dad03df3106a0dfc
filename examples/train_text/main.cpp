// mpirun -np N train_text [options]: data-parallel training of a small GPT on the bytes of a text. --help explains the
// rest.
#include <algorithm>
#include <atomic>
#include <csignal>
#include <iostream>
#include <optional>
#include <sstream>

#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/comm/launch/self_start.hpp>
#include <lockstep/nn/models/transformer.hpp>
#include <lockstep/runtime/files/atomic_folder.hpp>

#include "report.hpp"
#include "sampling.hpp"
#include "setup.hpp"

namespace {

using namespace lockstep;  // NOLINT(google-build-using-namespace): a program

std::atomic<int> stop_signal{0};
extern "C" void on_signal(int number) {
  stop_signal.store(number, std::memory_order_relaxed);
}

int run(comm::Session& session, int argc, char** argv) {
  const bool first = session.rank() == 0;
  train_text::Parsed parsed;
  const cli::ConfigFile config = cli::read_config_file(session, argc, argv);
  session.agree([&] { parsed = train_text::parse(argc, argv, config); });
  comm::require_same_on_all_ranks(session.control(), comm::arguments_text(argc, argv));
  if (!parsed.text.empty()) {
    std::cout << (first ? parsed.text : "") << std::flush;
    return exit_code::kFinished;
  }
  const train_text::Options& o = parsed.options;
  const comm::RanksRequest ranks = cli::ranks_request(o.launch);
  comm::require_ranks_as_requested(session, ranks);
  comm::Workplace place(session, ranks.devices, {.threads = o.threads, .bind_near_gpu = o.launch.bind == "gpu"});

  train_text::Corpus corpus;
  std::optional<train_text::TextWindows> train;
  std::optional<train_text::TextWindows> validation;
  std::optional<nn::Model> model;
  std::optional<nn::Trainer> trainer;
  session.agree([&] {
    corpus = train_text::read_corpus(o.data);
    train.emplace(corpus.source + ", the part to train on,", corpus.train, o.length);
    validation.emplace(corpus.source + ", the last tenth,", corpus.validation, o.length);
    model.emplace(nn::transformer({.vocabulary = train_text::kVocabulary,
                                   .length = o.length,
                                   .width = o.width,
                                   .heads = o.heads,
                                   .layers = o.layers}));
    trainer.emplace(place.context(), nn::Ranks{place.grad(), session.control(), place.communication_stream()}, *model,
                    nn::TrainingData{*train, *validation}, train_text::trainer_options(o, *train, session.size()));
  });
  const double histogram_bits = train_text::histogram_bits(corpus.train, corpus.validation);
  nn::RunIdentity identity = nn::identity_of(*trainer);
  identity.threads = place.threads();
  identity.options["heads"] = std::to_string(o.heads);  // changes numbers, but no shape
  if (first) {
    print_header(o, corpus, histogram_bits, *model, place, session, *trainer);
  }
  session.agree([&] { trainer->start(); });

  train_text::Report report;
  std::string from = o.resume;
  session.agree([&] {
    if (first) {
      report.lock(o.out);  // one run writes to a folder, also while it is read here
      from = o.resume == "auto" ? (find_folder(o.out + "/last").empty() ? "" : o.out + "/last") : o.resume;
    }
  });
  from = comm::broadcast_text(session.control(), from);
  nn::RunProgress progress;
  std::string differences;
  if (!from.empty()) {
    session.agree([&] { differences = nn::resume_checkpoint(from, *trainer, session.control(), identity, progress); });
    session.agree([&] { trainer->require_same_state(); });
  }
  session.agree([&] {
    if (first) {
      train_text::print_resumed(from, progress, differences);
      report.open(o, identity, !from.empty(), train_text::console_options(o, *trainer), histogram_bits);
    }
  });

  for (const int number : {SIGTERM, SIGINT, SIGUSR1}) {
    std::signal(number, on_signal);
  }
  const nn::RunResult result = nn::run_training(*trainer, session.control(), identity,
                                                {.epochs = o.epochs,
                                                 .steps = o.steps,
                                                 .log_every = o.log_every,
                                                 .checkpoint_dir = o.out,
                                                 .checkpoint_every = o.checkpoint_every,
                                                 .stop = &stop_signal},
                                                progress, report);
  const int code = result.end == nn::RunEnd::finished ? exit_code::kFinished : exit_code::kStopped;
  report.end(code, *trainer, result, o.out);
  if (first && code == exit_code::kFinished && o.sample > 0) {
    std::cout << train_text::printable(o.prompt)
              << train_text::printable(train_text::sample_text(place.context(), *model, trainer->parameters(),
                                                               train_text::sampling_options(o, *trainer)))
              << '\n';
  }
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::comm::run_program(argc, argv, run, [&]() -> std::optional<lockstep::comm::RanksRequest> {
    const train_text::Parsed parsed = train_text::parse(argc, argv, lockstep::cli::read_config_file(argc, argv));
    return parsed.text.empty() ? std::optional(lockstep::cli::ranks_request(parsed.options.launch)) : std::nullopt;
  });
}
