#include <lockstep/nn/run/metrics_log.hpp>

#include <cerrno>
#include <cstring>

namespace lockstep::nn {

MetricsLog::MetricsLog(std::string path, bool append, const std::string& samples)
    : path_(std::move(path)),
      samples_per_second_(samples + "_per_second"),
      out_(path_, append ? std::ios::app : std::ios::trunc) {
  require<DataError>(out_.is_open(), path_, ": cannot be written: ", std::strerror(errno));
}

void MetricsLog::write(const Json& line) {
  out_ << line.text() << '\n' << std::flush;
  require<DataError>(out_.good(), path_, ": cannot be written: ", std::strerror(errno));
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
                    {"accuracy", event.accuracy},
                    {"learning_rate", event.learning_rate},
                    {samples_per_second_, event.samples_per_second}};
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
                    {"accuracy", event.train_accuracy},
                    {"test_loss", event.test.loss},
                    {"test_accuracy", event.test.accuracy},
                    {samples_per_second_, event.samples_per_second},
                    {"seconds", event.seconds},
                    {"skipped_updates", event.skipped_updates}};
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
