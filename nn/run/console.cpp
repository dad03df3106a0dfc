#include <lockstep/nn/run/console.hpp>

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

#include <lockstep/nn/run/detail/clock.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::nn {

namespace {

constexpr int kBarWidth = 24;

template <class... Args>
std::string format(const char* pattern, Args... args) {
  char line[256];
  std::snprintf(line, sizeof line, pattern, args...);
  return line;
}

/// Formats `value` with the printf pattern `pattern`. NaN becomes "-".
std::string figure(const char* pattern, double value) {
  return std::isnan(value) ? "-" : format(pattern, value);
}

/// Formats the program's own metrics, for example as "  bits_per_byte 2.345".
std::string text_of(const MetricValues& metrics) {
  std::string text;
  for (const auto& [name, value] : metrics) {
    text += concat("  ", name, ' ', figure("%.4g", value));
  }
  return text;
}

}  // namespace

bool output_is_terminal() {
  const char* kind = std::getenv("TERM");
  if (kind == nullptr || std::string_view(kind).empty() || std::string_view(kind) == "dumb") {
    return false;
  }
  if (isatty(STDOUT_FILENO) == 0) {
    return false;
  }
  if (std::getenv("OMPI_COMM_WORLD_SIZE") == nullptr) {
    return true;
  }
  std::error_code error;
  const std::string target =
      std::filesystem::read_symlink("/proc/" + std::to_string(getppid()) + "/fd/1", error).string();
  return !error && (target.starts_with("/dev/pts/") || target.starts_with("/dev/tty"));
}

int terminal_columns() {
  for (const int file : {STDOUT_FILENO, STDIN_FILENO}) {
    winsize size{};
    if (::ioctl(file, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
      return size.ws_col;
    }
  }
  const char* text = std::getenv("COLUMNS");
  const int columns = text == nullptr ? 0 : std::atoi(text);
  return columns > 0 ? columns : 80;
}

std::string duration_text(double seconds) {
  const auto s = static_cast<long long>(std::llround(std::max(seconds, 0.0)));
  if (s >= 3600) {
    return format("%lld h %02lld min", s / 3600, s / 60 % 60);
  }
  if (s >= 60) {
    return format("%lld min %02lld s", s / 60, s % 60);
  }
  return format("%lld s", s);
}

void Console::on_report(const ReportEvent& event) {
  const double now = detail::now_s();
  if (last_step_ >= 0 && event.step > last_step_) {
    const double lap = (now - last_time_) / static_cast<double>(event.step - last_step_);
    seconds_per_step_ = seconds_per_step_ > 0 ? 0.8 * seconds_per_step_ + 0.2 * lap : lap;
  }
  last_step_ = event.step;
  last_time_ = now;
  const double left = seconds_per_step_ * static_cast<double>(std::max<std::int64_t>(run_.total_steps - event.step, 0));
  const std::string time_left = seconds_per_step_ > 0 ? duration_text(left) + " left" : "";
  const std::string where = concat("epoch ", event.epoch + 1, '/', run_.epochs);
  const std::string done = concat(event.batch, '/', run_.batches_per_epoch, "  loss ", figure("%.4f", event.loss));
  if (!options_.terminal) {
    out_ << where << " batch " << done << accuracy_text("  accuracy", event.accuracy) << text_of(event.metrics)
         << format("  lr %.4g  %.0f ", event.learning_rate, event.samples_per_second) << options_.samples << "/s  "
         << time_left << '\n'
         << std::flush;
    return;
  }
  const auto columns = static_cast<std::size_t>(options_.columns > 0 ? options_.columns : terminal_columns());
  const auto filled = static_cast<int>(kBarWidth * event.batch / std::max<std::int64_t>(run_.batches_per_epoch, 1));
  std::string bar(static_cast<std::size_t>(std::clamp(filled, 0, kBarWidth)), '#');
  bar.resize(kBarWidth, '.');
  const std::string rest = concat(' ', done, text_of(event.metrics), format("  %.0f ", event.samples_per_second),
                                  options_.samples, "/s  ", time_left);
  std::string line = concat(where, " [", bar, ']', rest);
  // Some terminals wrap a line that fills all columns. So a line that is too long loses its progress bar, and its end
  // is cut off.
  if (line.size() >= columns) {
    line = (where + rest).substr(0, columns - 1);
  }
  out_ << "\r\033[K" << line << std::flush;
  bar_drawn_ = true;
}

Console::~Console() {
  try {
    clear_bar();
    out_.flush();
  } catch (...) {  // the stream failed, so the progress line stays on the terminal
  }
}

void Console::clear_bar() {
  if (bar_drawn_) {
    out_ << "\r\033[K";
    bar_drawn_ = false;
  }
}

void Console::note(const std::string& text) {
  clear_bar();
  out_ << text << '\n' << std::flush;
}

void Console::on_run_end(const RunResult& /*result*/) {
  clear_bar();
  out_ << std::flush;
}

std::string Console::accuracy_text(const char* label, double accuracy) const {
  return options_.accuracies ? concat(label, ' ', figure("%.2f %%", 100 * accuracy)) : "";
}

void Console::on_epoch_end(const EpochEvent& event) {
  clear_bar();
  const EvaluationEvent& test = event.test;
  const std::string top_k =
      test.top_k > 0 ? concat(", top ", test.top_k, ' ', figure("%.2f %%", 100 * test.top_k_accuracy)) : "";
  const std::string skipped =
      event.skipped_updates > 0 ? concat("  ", event.skipped_updates, " updates skipped: not finite") : "";
  const char* diverged = std::isfinite(event.train_loss) && std::isfinite(test.loss) ? "" : "  loss is not finite";
  out_ << concat("epoch ", event.epoch, '/', run_.epochs, "  train loss ") << figure("%.4f", event.train_loss)
       << accuracy_text(" accuracy", event.train_accuracy) << "  test loss " << figure("%.4f", test.loss)
       << accuracy_text(" accuracy", test.accuracy) << top_k << text_of(test.metrics) << (event.best ? " (best)" : "")
       << format("  %.0f ", event.samples_per_second) << options_.samples << "/s  " << duration_text(event.seconds)
       << skipped << diverged << '\n'
       << std::flush;
  // The next report starts a new measurement, so that time of the evaluation is not counted as time of steps.
  last_step_ = -1;
}

}  // namespace lockstep::nn
