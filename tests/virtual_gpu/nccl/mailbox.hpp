#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::nccl_standin {

/// What processes leave for each other: files of a folder, there whole or not at all. Letters have names, are put once
/// and stay. std::runtime_error naming the file when it cannot be written or read.
class Mailbox {
 public:
  explicit Mailbox(std::string folder);  ///< made where it is missing, with those above it

  /// head: one line, its end included, or nothing.
  void put(const std::string& name, std::string_view head = {}, const std::vector<std::byte>& bytes = {}) const;
  [[nodiscard]] bool has(const std::string& name) const;
  /// The head and the bytes of a letter that is there.
  [[nodiscard]] std::pair<std::string, std::vector<std::byte>> get(const std::string& name) const;

 private:
  [[nodiscard]] std::string path(const std::string& name) const { return folder_ + "/" + name; }
  std::string folder_;
};

}  // namespace lockstep::nccl_standin
