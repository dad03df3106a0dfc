#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// Processors (hardware threads) by number, as the operating system counts them. A value.
class ProcessorSet {
 public:
  ProcessorSet() = default;
  /// Parses "0-3,8", the format of /sys. White space around it is ignored; an empty text is the empty set. DataError
  /// for anything else.
  [[nodiscard]] static ProcessorSet parse(std::string_view text);
  /// The processors that this thread may run on. Empty where the system does not tell.
  [[nodiscard]] static ProcessorSet of_this_thread();
  /// Those of this process: where OpenMP has bound this thread, or the one that started it, to one of its places
  /// (OMP_PROC_BIND), all that are in a place; else those of this thread.
  [[nodiscard]] static ProcessorSet of_process();
  [[nodiscard]] static ProcessorSet of(const std::vector<int>& numbers);

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

/// All processors of this machine that are online; empty where the system does not tell.
[[nodiscard]] ProcessorSet online_processors();
/// A NUMA node: a part of the machine's memory, by the operating system's number, and the processors next to it.
struct NumaNode {
  int number = 0;
  ProcessorSet processors{};  ///< empty: a node of memory alone
};
/// All NUMA nodes by number, as the kernel lists them below `root`. Empty when it lists none.
[[nodiscard]] std::vector<NumaNode> numa_nodes(const std::string& root = "/sys");

/// The processors whose time the control groups of this process leave it, "1.5"; nullopt: no limit. `root` is put in
/// front of /proc and /sys.
[[nodiscard]] std::optional<double> processor_quota(const std::string& root = {});

/// The number of cores of these processors: two hardware threads of one core count once.
[[nodiscard]] int count_cores(const ProcessorSet& processors);

}  // namespace lockstep
