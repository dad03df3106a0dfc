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

void MetricsLog::on_step(const StepEvent& event) {
  Json::Object line{{"event", "step"},
                    {"epoch", event.epoch},
                    {"step", event.step},
                    {"loss", event.loss},
                    {"accuracy", event.accuracy},
                    {"learning_rate", event.learning_rate},
                    {samples_per_second_, event.images_per_second}};
  if (event.comm_exposed_s >= 0) {
    line["comm_exposed_s"] = event.comm_exposed_s;
  }
  write(std::move(line));
}

void MetricsLog::on_epoch(const EpochEvent& event) {
  Json::Object line{{"event", "epoch"},
                    {"epoch", event.epoch},
                    {"step", event.step},
                    {"loss", event.train_loss},
                    {"accuracy", event.train_accuracy},
                    {"test_loss", event.test_loss},
                    {"test_accuracy", event.test_accuracy},
                    {samples_per_second_, event.images_per_second},
                    {"seconds", event.seconds},
                    {"skipped_updates", event.skipped_updates}};
  if (event.comm_exposed_s >= 0) {
    line["comm_exposed_s"] = event.comm_exposed_s;
  }
  if (event.top_k > 0) {
    line["test_top_k_accuracy"] = event.test_top_k_accuracy;
  }
  write(std::move(line));
}

void MetricsLog::on_end(int exit_code, std::int64_t step, const RunResult& result) {
  const auto measured = [](double accuracy) { return accuracy < 0 ? Json() : Json(accuracy); };
  write(Json::Object{{"event", "end"},
                     {"exit_code", exit_code},
                     {"step", step},
                     {"test_accuracy", measured(result.test_accuracy)},
                     {"best_accuracy", measured(result.best_accuracy)}});
}

}  // namespace lockstep::nn
