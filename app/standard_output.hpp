#pragma once

#include <functional>
#include <memory>
#include <streambuf>

namespace lockstep::nn {

/// While this object lives, std::cout does not make the program wait: a thread writes to standard output what the
/// program has printed. So a run goes on when nobody reads its output (a pager that stands still, Ctrl-S), or when
/// writing fails (the reader has gone, a full disk); a failure prints one line on standard error. Text that waits for
/// its reader takes at most 4 MiB; further text is left out, and a line says so in its place.
class StandardOutput {
 public:
  StandardOutput();
  /// Waits until all text is written, `give_up` returns true, or `seconds` have passed.
  void finish(double seconds, const std::function<bool()>& give_up);
  ~StandardOutput();  ///< restores std::cout, then waits for a second at most
  StandardOutput(const StandardOutput&) = delete;
  StandardOutput& operator=(const StandardOutput&) = delete;

  [[nodiscard]] bool failed() const;  ///< true: some text could not be written

 private:
  class Buffer;
  struct Shared;
  std::shared_ptr<Shared> shared_;  ///< shared with the thread, which outlives this object if a write does not end
  std::unique_ptr<Buffer> buffer_;
  std::streambuf* before_;
};

}  // namespace lockstep::nn
