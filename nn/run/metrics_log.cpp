#include <lockstep/nn/run/metrics_log.hpp>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <system_error>

#include <lockstep/runtime/files/file.hpp>

namespace lockstep::nn {

namespace {

/// Regressions have no accuracy.
void put_accuracy(Json::Object& line, const char* name, double accuracy) {
  if (!std::isnan(accuracy)) {
    line[name] = accuracy;
  }
}

/// Makes the folder of the file, which may not exist yet.
std::string with_folder(const std::string& path) {
  std::error_code ignored;  // opening the file reports the error
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  return path;
}

/// Removes an incomplete last line.
void remove_cut_line(const std::string& path) {
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  if (!in.is_open()) {
    return;  // no file yet
  }
  const std::streamoff size = in.tellg();
  std::streamoff end = size;
  for (char last = 0; end > 0; --end) {
    in.seekg(end - 1);
    if (!in.get(last) || last == '\n') {
      break;
    }
  }
  if (end < size) {
    std::error_code error;
    std::filesystem::resize_file(path, static_cast<std::uintmax_t>(end), error);
    require<DataError>(!error, path, ": its cut last line cannot be removed: ", error.message());
  }
}

/// Returns the path after making its folder and, for append, removing an incomplete last line.
std::string prepared(const std::string& path, bool append) {
  std::string made = with_folder(path);
  if (append) {
    remove_cut_line(made);
  }
  return made;
}

}  // namespace

MetricsLog::MetricsLog(const std::string& path, bool append, const std::string& samples)
    : path_(prepared(path, append)),
      samples_per_second_(samples + "_per_second"),
      out_(path_, append ? std::ios::app : std::ios::trunc) {
  require<DataError>(out_.is_open(), path_, ": cannot be written: ", std::strerror(errno));
}

void MetricsLog::write(const Json& line) {
  out_ << line.text() << '\n' << std::flush;
  require<WriteError>(out_.good(), path_, ": cannot be written: ", std::strerror(errno));
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
