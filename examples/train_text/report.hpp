#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <lockstep/comm/launch/session.hpp>
#include <lockstep/comm/launch/workplace.hpp>
#include <lockstep/nn/model/model.hpp>
#include <lockstep/nn/run/checkpoint.hpp>
#include <lockstep/nn/run/console.hpp>
#include <lockstep/nn/run/metrics_log.hpp>
#include <lockstep/nn/run/trainer.hpp>
#include <lockstep/nn/run/training_run.hpp>
#include <lockstep/runtime/files/folder_lock.hpp>

#include "corpus.hpp"
#include "options.hpp"

namespace train_text {

/// What a run writes on rank 0: folder, console, metrics.jsonl, and after each epoch the bits a byte that the model
/// needs. Does nothing on other ranks, where open() is not called.
class Report final : public lockstep::nn::RunObserver {
 public:
  /// No other run writes to `folder` from now on. Where there is no folder yet, nothing. UsageError naming --out.
  void lock(const std::string& folder);
  /// Makes and locks the folder of results, and writes config.json.
  void open(const Options& options, const lockstep::nn::RunIdentity& identity, bool append,
            const lockstep::nn::Console::Options& console, double histogram_bits);
  void on_step(const lockstep::nn::StepEvent& event) override;
  void on_epoch(const lockstep::nn::EpochEvent& event) override;
  /// The last line, before samples.
  void end(int exit_code, const lockstep::nn::Trainer& trainer, const lockstep::nn::RunResult& result,
           const std::string& folder);

 private:
  std::optional<lockstep::FolderLock> lock_;
  std::optional<lockstep::nn::MetricsLog> log_;
  std::optional<lockstep::nn::Console> console_;
  double histogram_bits_ = 0;
  std::string bits_text_ = "nothing was left to train";
};

/// Where the run goes on from; nothing for a new one.
void print_resumed(const std::string& from, const lockstep::nn::RunProgress& progress, const std::string& differences);

/// What the run will do.
void print_header(const Options& options, const Corpus& corpus, double histogram_bits, const lockstep::nn::Model& model,
                  lockstep::comm::Workplace& place, lockstep::comm::Session& session,
                  const lockstep::nn::Trainer& trainer);

}  // namespace train_text
