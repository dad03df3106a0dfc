#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <lockstep/nn/run/observer.hpp>
#include <lockstep/runtime/files/file.hpp>

namespace lockstep::nn {

/// Writes an event file that TensorBoard reads: `tensorboard --logdir FOLDER`. Each scalar has a step:
///   a report        train/loss, train/accuracy, train/learning_rate, train/samples_per_second, train/comm_exposed_s,
///                   metrics of your own as train/NAME
///   end of epoch    epoch/loss, epoch/accuracy, epoch/samples_per_second, test/loss, test/accuracy,
///                   test/top_k_accuracy, metrics of your own as test/NAME
/// Values that do not exist, such as accuracies of a regression, are not written. Every process writes a new file.
/// TensorBoard shows the files of a folder as one run. If a newer file begins at step s, TensorBoard ignores the values
/// of older files from step s on.
///
/// The file is a sequence of records (length, CRC-32C of the length, bytes, CRC-32C of the bytes;
/// tensorflow/core/lib/io/record_writer.h), and each record holds an Event message (tensorflow/core/util/event.proto).
class TensorBoardLog final : public RunObserver {
 public:
  /// Makes `folder` if it is missing, and a new file in this folder. `step` is the number of steps that the run has
  /// done before, 0 for a new run. `samples` is the word for samples, as in MetricsLog. Throws DataError if the file
  /// cannot be made. Each later call throws WriteError if the file cannot be written.
  TensorBoardLog(const std::string& folder, std::int64_t step, const std::string& samples = "samples");
  void on_report(const ReportEvent& event) override;
  void on_epoch_end(const EpochEvent& event) override;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  using Scalars = std::vector<std::pair<std::string, double>>;
  void write(std::int64_t step, const Scalars& scalars);
  void write_record(const std::string& event);
  std::string path_;
  std::string samples_per_second_;  ///< tag of the speed: word for samples + "_per_second"
  LogFile out_;
};

}  // namespace lockstep::nn
