#include "report.hpp"

#include <filesystem>
#include <iomanip>
#include <iostream>
#include <sstream>
#include <system_error>

#include <lockstep/nn/plan/precision.hpp>
#include <lockstep/nn/run/run_rules.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/units.hpp>
#include <lockstep/runtime/base/version.hpp>
#include <lockstep/runtime/files/file.hpp>

namespace train_text {

namespace comm = lockstep::comm;
namespace nn = lockstep::nn;
using lockstep::Json;

namespace {

std::string bits_text(double bits) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(3) << bits;
  return text.str();
}

std::string counted(std::int64_t count, const char* what) {
  return lockstep::concat(count, ' ', what, count == 1 ? "" : "s");
}

}  // namespace

void Report::lock(const std::string& folder) {
  std::error_code ignored;
  if (lock_ || !std::filesystem::is_directory(folder, ignored)) {
    return;
  }
  try {
    lock_.emplace(folder);
  } catch (lockstep::UsageError& error) {
    error.annotate("--out");
    throw;
  }
}

void Report::open(const Options& options, const nn::RunIdentity& identity, bool append,
                  const nn::Console::Options& console, double histogram_bits) {
  std::error_code error;
  std::filesystem::create_directories(options.out, error);
  lockstep::require<lockstep::DataError>(!error, "--out ", options.out, ": cannot be made: ", error.message());
  lock(options.out);
  Json::Object decided;
  for (const auto& [key, value] : identity.options) {
    decided[key] = value;
  }
  const Json config = Json::Object{{"lockstep", lockstep::build_description()},
                                   {"data", options.data},
                                   {"layers", options.layers},
                                   {"heads", options.heads},
                                   {"width", options.width},
                                   {"length", options.length},
                                   {"seed", identity.seed},
                                   {"ranks", identity.ranks},
                                   {"threads_per_rank", identity.threads},
                                   {"global_batch", identity.global_batch},
                                   {"options", decided},
                                   {"histogram_bits", histogram_bits},
                                   {"resume", options.resume}};
  lockstep::replace_file(options.out + "/config.json", config.text(2) + "\n");
  log_.emplace(options.out + "/metrics.jsonl", append, console.samples);
  console_.emplace(std::cout, console);
  histogram_bits_ = histogram_bits;
}

void Report::on_step(const nn::StepEvent& event) {
  if (log_) {
    console_->on_step(event);
    log_->on_step(event);
  }
}

void Report::on_epoch(const nn::EpochEvent& event) {
  if (!log_) {
    return;
  }
  console_->on_epoch(event);
  log_->on_epoch(event);
  const double bits = bits_of(event.test_loss);
  bits_text_ = "validation " + bits_text(bits) + " bits a byte, byte histogram " + bits_text(histogram_bits_);
  std::cout << "  " << bits_text_ << '\n' << std::flush;
  log_->write_event("bits", {{"epoch", event.epoch},
                             {"step", event.step},
                             {"train_bits", bits_of(event.train_loss)},
                             {"validation_bits", bits},
                             {"histogram_bits", histogram_bits_}});
}

void Report::end(int exit_code, const nn::Trainer& trainer, const nn::RunResult& result, const std::string& folder) {
  if (!log_) {
    return;
  }
  const std::int64_t step = trainer.position().step;
  log_->on_end(exit_code, step, result);
  if (exit_code == lockstep::exit_code::kStopped) {
    std::cout << "stopped by a signal at step " << step << "; --resume auto goes on from " << folder << "/last\n";
  } else {
    std::cout << "finished: " << bits_text_ << "; results in " << folder << '\n';
  }
  std::cout << std::flush;
}

void print_resumed(const std::string& from, const nn::RunProgress& progress, const std::string& differences) {
  if (from.empty()) {
    return;
  }
  std::cout << "  resuming   " << from << " at epoch " << progress.position.epoch << ", batch "
            << progress.position.batch << ", step " << progress.position.step << '\n';
  std::istringstream lines(differences);
  for (std::string line; std::getline(lines, line);) {
    std::cout << "  differs    " << line << " (the run continues, not bit for bit)\n";
  }
  std::cout << std::flush;
}

void print_header(const Options& o, const Corpus& corpus, double histogram_bits, const nn::Model& model,
                  comm::Workplace& place, comm::Session& session, const nn::Trainer& trainer) {
  const nn::Schedule& schedule = trainer.options().schedule;
  const auto windows = [&](const nn::Dataset& set) { return lockstep::concat(set.size(), " windows"); };
  std::cout << lockstep::build_description() << '\n'
            << "  ranks      " << session.size() << " on " << counted(session.nodes(), "node") << ", "
            << session.description() << '\n'
            << "  launch     " << session.launch().description() << '\n'
            << "  compute    "
            << (place.on_gpu() ? lockstep::cli::gpu_text(*place.gpu())
                               : lockstep::concat("cpu, ", counted(place.threads(), "thread"), " a rank"))
            << "; " << place.share().description() << '\n'
            << (place.device().note.empty() ? "" : "             " + place.device().note + "\n") << "  text       "
            << corpus.source << ": " << counted(corpus.files, "file") << ", " << corpus.train.size()
            << " bytes to train on (" << windows(trainer.data().train) << " of " << o.length << "), "
            << corpus.validation.size() << " for validation (" << windows(trainer.data().test) << ")\n"
            << "  baseline   " << bits_text(histogram_bits)
            << " bits a byte: validation by the byte histogram of the text to train on\n"
            << "  model      GPT, " << counted(o.layers, "layer") << " of width " << o.width << " with "
            << counted(o.heads, "head") << ", " << model.parameter_count() << " parameters, "
            << nn::name_of(nn::parse_precision(o.dtype)) << '\n'
            << "  batch      " << nn::run_rules({.ranks = session.size(), .global_batch = o.batch_size}).batch_text()
            << ", " << counted(trainer.batches_per_epoch(), "step") << " an epoch, "
            << counted(schedule.total_steps, "step") << " in all\n"
            << "  optimizer  adamw, learning rate " << schedule.base << " (cosine, warm-up "
            << counted(schedule.warmup_steps, "step") << "), clip norm " << trainer.options().optimizer.clip_norm
            << ", weight decay " << trainer.options().weight_decay << '\n'
            << "  memory     " << lockstep::bytes_text(static_cast<double>(trainer.planned_bytes())) << " a rank\n"
            << "  overlap    with backward " << place.overlap_reason() << '\n'
            << std::flush;
}

}  // namespace train_text
