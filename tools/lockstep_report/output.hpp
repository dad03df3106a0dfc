#pragma once

#include <optional>
#include <string>
#include <vector>

#include <lockstep/runtime/files/file.hpp>

#include "tools/lockstep_report/run_log.hpp"

namespace lockstep::tools {

/// What is written, to where. A file appears whole, in place of an older one; -, /dev/stdout and what else leads to
/// standard output are standard output.
class Output {
 public:
  explicit Output(std::string path);

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] bool printed() const { return printed_; }
  /// Whether writing would harm this file.
  [[nodiscard]] bool harms(const std::string& file) const;

  /// Makes a file beside the name: one that cannot be made, or that would replace a device, a FIFO or a folder, is an
  /// error (FileError) before anything is written.
  void begin();
  /// After begin(). WriteError when the disk is full.
  void write(const std::string& text);

 private:
  std::string path_;
  bool printed_ = false;
  std::optional<AtomicFile> file_{};
};

/// UsageError for an output that would overwrite what was read, or the other one. nullptr: there is none.
void require_apart(const std::vector<RunLog>& runs, const Output* table, const Output* page);

}  // namespace lockstep::tools
