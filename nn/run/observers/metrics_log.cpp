#include <lockstep/nn/run/observers/metrics_log.hpp>

#include <cmath>
#include <filesystem>
#include <system_error>

namespace lockstep::nn {

namespace {

/// Adds `accuracy` to `line` under the key `name`, unless it is NaN, as for a regression.
void put_accuracy(Json::Object& line, const char* name, double accuracy) {
  if (!std::isnan(accuracy)) {
    line[name] = accuracy;
  }
}

/// Makes the folder of the file `path` if the folder is missing. Returns `path`.
std::string with_folder(const std::string& path) {
  std::error_code ignored;  // not checked, because opening the file then reports the error
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  return path;
}

}  // namespace

MetricsLog::MetricsLog(const std::string& path, bool append, const std::string& samples)
    : samples_per_second_(samples + "_per_second"), out_(with_folder(path), append) {}

void MetricsLog::write(const Json& line) {
  out_.write(line.text() + '\n');
}

void MetricsLog::write_event(const std::string& name, Json::Object fields) {
  fields["event"] = name;
  write(std::move(fields));
}

void MetricsLog::on_report(const ReportEvent& event) {
  Json::Object line{{"event", "step"},
                    {"epoch", event.epoch},
                    {"step", event.step},
                    {"loss", event.loss},
                    {"learning_rate", event.learning_rate},
                    {samples_per_second_, event.samples_per_second}};
  put_accuracy(line, "accuracy", event.accuracy);
  if (event.comm_exposed_s >= 0) {
    line["comm_exposed_s"] = event.comm_exposed_s;
  }
  line.insert(event.metrics.begin(), event.metrics.end());
  write(std::move(line));
}

void MetricsLog::on_epoch_end(const EpochEvent& event) {
  Json::Object line{{"event", "epoch"},
                    {"epoch", event.epoch},
                    {"step", event.step},
                    {"loss", event.train_loss},
                    {"test_loss", event.test.loss},
                    {samples_per_second_, event.samples_per_second},
                    {"seconds", event.seconds},
                    {"skipped_updates", event.skipped_updates},
                    {"gradient_bytes", event.gradient_bytes}};
  if (event.sent_bytes >= 0) {
    line["sent_bytes"] = event.sent_bytes;
  }
  if (event.peak_bytes >= 0) {
    line["peak_bytes"] = event.peak_bytes;
  }
  put_accuracy(line, "accuracy", event.train_accuracy);
  put_accuracy(line, "test_accuracy", event.test.accuracy);
  if (event.comm_exposed_s >= 0) {
    line["comm_exposed_s"] = event.comm_exposed_s;
  }
  if (event.test.top_k > 0) {
    line["test_top_k_accuracy"] = event.test.top_k_accuracy;
  }
  line.insert(event.test.metrics.begin(), event.test.metrics.end());
  write(std::move(line));
}

void MetricsLog::on_end(int exit_code, const RunResult& result) {
  const auto measured = [](std::optional<double> value) { return value ? Json(*value) : Json(); };
  const RunProgress& progress = result.progress;
  write(Json::Object{{"event", "end"},
                     {"exit_code", exit_code},
                     {"step", progress.position.step},
                     {"test_loss", measured(progress.test_loss)},
                     {"test_accuracy", measured(progress.test_accuracy)},
                     {"best_by", progress.best_by},
                     {"best", measured(progress.best)}});
}

}  // namespace lockstep::nn
