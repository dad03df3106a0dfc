#pragma once

#include <functional>
#include <memory>
#include <streambuf>

namespace lockstep::nn {

/// While it lives, std::cout does not make the program wait: a thread writes to standard output what the program has
/// printed. So a run goes on when nobody reads what it says (a pager that stands still, Ctrl-S), or nobody can: a
/// reader that has gone, a full disk. One line on standard error says so then. What waits for its reader takes at most
/// 4 MiB; what does not fit is left out, and a line says so in its place.
class StandardOutput {
 public:
  StandardOutput();
  /// Waits until all is written, but not after `give_up` has said so, nor longer than `seconds`.
  void finish(double seconds, const std::function<bool()>& give_up);
  ~StandardOutput();  ///< waits for a second; std::cout is as before
  StandardOutput(const StandardOutput&) = delete;
  StandardOutput& operator=(const StandardOutput&) = delete;

  [[nodiscard]] bool failed() const;  ///< something could not be written

 private:
  class Buffer;
  struct Shared;
  std::shared_ptr<Shared> shared_;  ///< with the thread, which may outlive this object in a write that does not end
  std::unique_ptr<Buffer> buffer_;
  std::streambuf* before_;
};

}  // namespace lockstep::nn
