#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// Processors (hardware threads) by number, as the operating system counts them. A value.
class ProcessorSet {
 public:
  ProcessorSet() = default;
  /// "0-3,8", the format of /sys; spaces and line ends around it do not matter, nothing is the empty set. DataError
  /// otherwise.
  [[nodiscard]] static ProcessorSet parse(std::string_view text);
  /// Those that this thread may run on. Empty where the system does not tell.
  [[nodiscard]] static ProcessorSet of_this_thread();

  [[nodiscard]] int count() const { return static_cast<int>(numbers_.size()); }
  [[nodiscard]] bool empty() const { return numbers_.empty(); }
  [[nodiscard]] bool contains(int processor) const;
  [[nodiscard]] const std::vector<int>& numbers() const { return numbers_; }  ///< ascending
  [[nodiscard]] ProcessorSet intersection(const ProcessorSet& other) const;
  [[nodiscard]] std::string text() const;  ///< "0-3,8"; "none"

  friend bool operator==(const ProcessorSet&, const ProcessorSet&) = default;

 private:
  std::vector<int> numbers_;
};

/// All that run on this machine; empty where the system does not tell.
[[nodiscard]] ProcessorSet online_processors();
/// A part of a machine's memory, by the number that the operating system gives it, and the processors next to it.
struct NumaNode {
  int number = 0;
  ProcessorSet processors{};  ///< none: memory alone
};
/// As the kernel tells below `root`, by number. Empty when it does not.
[[nodiscard]] std::vector<NumaNode> numa_nodes(const std::string& root = "/sys");

/// How many cores these processors belong to: two hardware threads of one core count once.
[[nodiscard]] int count_cores(const ProcessorSet& processors);

}  // namespace lockstep
