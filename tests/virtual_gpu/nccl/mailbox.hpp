#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::nccl_standin {

/// Letters that processes leave for each other: files of a folder, complete or absent. A letter has a name, is put once
/// and stays. A std::runtime_error names the file when it cannot be written or read.
class Mailbox {
 public:
  explicit Mailbox(std::string folder);  ///< makes the folder and its parents if they are missing

  /// Puts a letter. head: one line with its line end, or nothing.
  void put(const std::string& name, std::string_view head = {}, const std::vector<std::byte>& bytes = {}) const;
  [[nodiscard]] bool has(const std::string& name) const;
  /// Returns the head and the bytes of a letter that exists.
  [[nodiscard]] std::pair<std::string, std::vector<std::byte>> get(const std::string& name) const;

 private:
  [[nodiscard]] std::string path(const std::string& name) const { return folder_ + "/" + name; }
  std::string folder_;
};

}  // namespace lockstep::nccl_standin
