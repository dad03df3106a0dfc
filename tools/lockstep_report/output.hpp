#pragma once

#include <optional>
#include <string>
#include <vector>

#include <lockstep/runtime/files/file.hpp>

#include "tools/lockstep_report/run_log.hpp"

namespace lockstep::tools {

/// What is written, to where. A file appears whole, in place of an older one; a character device, a FIFO and
/// /dev/stderr are written into, as renaming a file would take their names from the system; -, /dev/stdout and what
/// else leads to standard output are standard output.
class Output {
 public:
  explicit Output(std::string path);

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] bool printed() const { return place_ == Place::standard_output; }
  [[nodiscard]] bool in_place() const { return place_ == Place::in_place; }
  /// Whether writing would harm this file.
  [[nodiscard]] bool harms(const std::string& file) const;

  /// Makes a file beside the name: one that cannot be made is an error (FileError) before anything is written.
  void begin();
  /// After begin(). FileError for a device that cannot be opened, WriteError when the disk is full.
  void write(const std::string& text);

 private:
  enum class Place { file, in_place, standard_output };
  void write_in_place(const std::string& text) const;

  std::string path_;
  Place place_ = Place::file;
  std::optional<AtomicFile> file_{};
};

/// UsageError for an output that would overwrite what was read, or the other one. nullptr: there is none.
void require_apart(const std::vector<RunLog>& runs, const Output* table, const Output* page);

}  // namespace lockstep::tools
