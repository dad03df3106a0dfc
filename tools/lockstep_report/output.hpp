#pragma once

#include <optional>
#include <string>
#include <vector>

#include <lockstep/runtime/files/file.hpp>

#include "tools/lockstep_report/run_log.hpp"

namespace lockstep::tools {

/// Writes a text to a file or to standard output. A file is written completely under a temporary name, then replaces an
/// older file. "-", /dev/stdout and other paths of the same device mean standard output.
class Output {
 public:
  explicit Output(std::string path);

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] bool printed() const { return printed_; }
  /// Returns true if this output would overwrite `file`.
  [[nodiscard]] bool harms(const std::string& file) const;

  /// Makes a temporary file next to path(), before anything is written. Throws FileError if the temporary file cannot
  /// be made, or if path() is a device, a FIFO or a folder.
  void begin();
  /// Writes the text, after begin(). Throws WriteError when the disk is full.
  void write(const std::string& text);

 private:
  std::string path_;
  bool printed_ = false;
  std::optional<AtomicFile> file_{};
};

/// Throws UsageError when an output would overwrite a file that was read, or when both outputs are the same file.
/// `table` or `page` is null if there is no such output.
void require_apart(const std::vector<RunLog>& runs, const Output* table, const Output* page);

}  // namespace lockstep::tools
