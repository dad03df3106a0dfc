#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <utility>

#include <lockstep/nn/run/observer.hpp>

namespace lockstep::nn {

/// Shows a run to people. On a terminal, a progress line is redrawn in place and cut to the terminal's width; it shows
/// samples per second and the time left. If the output is no terminal, each report is a line of its own. In both cases
/// one line per epoch is printed. A Console writes only to the given stream.
class Console final : public RunObserver {
 public:
  struct Options {
    bool terminal = false;
    std::string samples = "samples";  ///< word by which the output calls samples, such as "images"
    bool accuracies = true;           ///< true: prints accuracies; false for a regression, which has none
    int columns = 0;                  ///< width of the terminal; 0: terminal_columns(), called at each report
  };
  Console(std::ostream& out, Options options) : out_(out), options_(std::move(options)) {}
  ~Console() override;  ///< removes a progress line that an error has left; the error's text then begins a line
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  void on_run_begin(const RunBegin& event) override { run_ = event; }
  void on_report(const ReportEvent& event) override;
  void on_epoch_end(const EpochEvent& event) override;
  void on_run_end(const RunResult& result) override;  ///< ends the progress line
  void note(const std::string& text);                 ///< prints `text` as a line of its own

 private:
  void clear_bar();
  [[nodiscard]] std::string accuracy_text(const char* label, double accuracy) const;
  std::ostream& out_;
  Options options_;
  RunBegin run_;
  double seconds_per_step_ = 0;  ///< moving average over reports; the newest report has weight 0.2
  std::int64_t last_step_ = -1;
  double last_time_ = 0;
  bool bar_drawn_ = false;
};

/// Returns true if standard output is a terminal that can clear a line (TERM is set and not "dumb"). mpirun gives every
/// rank a terminal even if mpirun's own output goes to a file. Under mpirun, the standard output of the parent process
/// decides instead.
[[nodiscard]] bool output_is_terminal();

/// Returns the columns of the terminal on standard output or standard input; otherwise the variable COLUMNS, or 80.
[[nodiscard]] int terminal_columns();

/// Formats a duration as "1 h 02 min", "3 min 20 s" or "12 s".
[[nodiscard]] std::string duration_text(double seconds);

}  // namespace lockstep::nn
