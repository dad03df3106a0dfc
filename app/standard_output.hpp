#pragma once

#include <functional>
#include <memory>
#include <streambuf>

namespace lockstep::nn {

/// Keeps std::cout from blocking the program while this object exists: a thread writes the printed text to standard
/// output. So a run continues if nobody reads its output (a stopped pager, Ctrl-S). A run also continues if a write
/// fails, because the reader has gone or the disk is full; then one line is printed on standard error. Text that waits
/// for the thread takes at most 4 MiB. Text beyond this limit is dropped, and a line in its place says so.
class StandardOutput {
 public:
  StandardOutput();
  /// Waits until all text is written, `give_up` returns true, or `seconds` seconds have passed.
  void finish(double seconds, const std::function<bool()>& give_up);
  ~StandardOutput();  ///< restores std::cout, then waits at most a second for the text to be written
  StandardOutput(const StandardOutput&) = delete;
  StandardOutput& operator=(const StandardOutput&) = delete;

  [[nodiscard]] bool failed() const;  ///< true if some text could not be written

 private:
  class Buffer;
  struct Shared;
  std::shared_ptr<Shared> shared_;  ///< shared with the thread, which outlives this object if a write hangs
  std::unique_ptr<Buffer> buffer_;
  std::streambuf* before_;
};

}  // namespace lockstep::nn
