#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <utility>

#include <lockstep/nn/run/observer.hpp>

namespace lockstep::nn {

/// Shows the progress of a run to the user. On a terminal, one progress line with samples per second and the remaining
/// time is redrawn in place, cut to the terminal's width. Without a terminal, each report is a line of its own. In both
/// cases, the Console also prints one line per epoch. It writes only to the given stream.
class Console final : public RunObserver {
 public:
  struct Options {
    bool terminal = false;
    std::string samples = "samples";  ///< word for samples in the output, for example "images"
    bool accuracies = true;           ///< false: prints no accuracies, for a regression
    int columns = 0;                  ///< width of the terminal; 0: terminal_columns() decides at each report
  };
  Console(std::ostream& out, Options options) : out_(out), options_(std::move(options)) {}
  ~Console() override;  ///< removes the progress line, so that the text of an error begins on an empty line
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  void on_run_begin(const RunBegin& event) override { run_ = event; }
  void on_report(const ReportEvent& event) override;
  void on_epoch_end(const EpochEvent& event) override;
  void on_run_end(const RunResult& result) override;
  void note(const std::string& text);  ///< prints `text` as a line of its own

 private:
  void clear_bar();
  [[nodiscard]] std::string accuracy_text(const char* label, double accuracy) const;
  std::ostream& out_;
  Options options_;
  RunBegin run_;
  double seconds_per_step_ = 0;  ///< moving average over reports, in which the newest report has weight 0.2
  std::int64_t last_step_ = -1;
  double last_time_ = 0;
  bool bar_drawn_ = false;
};

/// Returns true if standard output is a terminal that can clear a line (TERM is set and not "dumb"). mpirun gives every
/// rank a terminal, even if mpirun's own output goes to a file. So under mpirun, the function checks the standard
/// output of the parent process instead.
[[nodiscard]] bool output_is_terminal();

/// Returns the number of columns of the terminal on standard output or standard input. Without a terminal, returns the
/// value of the environment variable COLUMNS, or 80.
[[nodiscard]] int terminal_columns();

/// Formats a duration as "1 h 02 min", "3 min 20 s" or "12 s".
[[nodiscard]] std::string duration_text(double seconds);

}  // namespace lockstep::nn
