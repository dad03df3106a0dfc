#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <utility>

#include <lockstep/nn/run/observer.hpp>

namespace lockstep::nn {

/// Shows a run to people: on a terminal a progress line with images (or what samples are) a second and time left that
/// is drawn over itself and fits the terminal's width, elsewhere a plain line an event; one line an epoch in both.
/// Writes to the stream it is given and nowhere else.
class Console final : public RunObserver {
 public:
  struct Options {
    bool terminal = false;
    std::string samples = "samples";  ///< what they are called
    bool accuracies = true;           ///< false: of a regression, which has none
    int columns = 0;                  ///< of the terminal; 0: terminal_columns(), asked at each report
  };
  Console(std::ostream& out, Options options) : out_(out), options_(std::move(options)) {}

  void on_run_begin(const RunBegin& event) override { run_ = event; }
  void on_report(const ReportEvent& event) override;
  void on_epoch_end(const EpochEvent& event) override;
  void on_run_end(const RunResult& result) override;  ///< ends the progress line

 private:
  void clear_bar();
  [[nodiscard]] std::string accuracy_text(const char* label, double accuracy) const;
  std::ostream& out_;
  Options options_;
  RunBegin run_;
  double seconds_per_step_ = 0;  ///< smoothed
  std::int64_t last_step_ = -1;
  double last_time_ = 0;
  bool bar_drawn_ = false;
};

/// True when standard output ends on a terminal that can clear a line (TERM is set and not "dumb"). mpirun gives every
/// rank a terminal of its own, also when its own output goes to a file; then the parent's standard output counts.
[[nodiscard]] bool output_is_terminal();

/// Columns of the terminal that standard output or input is, else COLUMNS, else 80.
[[nodiscard]] int terminal_columns();

/// "1 h 02 min", "3 min 20 s", "12 s"
[[nodiscard]] std::string duration_text(double seconds);

}  // namespace lockstep::nn
