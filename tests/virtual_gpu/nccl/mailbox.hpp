#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::nccl_standin {

/// Files in a folder through which processes exchange data. A file ("letter") has a name, is written once, appears
/// complete, and is never deleted. Throws std::runtime_error with the file's name if it cannot be written or read.
class Mailbox {
 public:
  explicit Mailbox(std::string folder);  ///< creates the folder and its parents if they do not exist

  /// Writes a letter. head: one line with its newline, or empty.
  void put(const std::string& name, std::string_view head = {}, const std::vector<std::byte>& bytes = {}) const;
  [[nodiscard]] bool has(const std::string& name) const;
  /// Returns the head and the bytes of an existing letter.
  [[nodiscard]] std::pair<std::string, std::vector<std::byte>> get(const std::string& name) const;

 private:
  [[nodiscard]] std::string path(const std::string& name) const { return folder_ + "/" + name; }
  std::string folder_;
};

}  // namespace lockstep::nccl_standin
