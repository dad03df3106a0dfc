#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// A set of processors (hardware threads), numbered as in the operating system. A value.
class ProcessorSet {
 public:
  ProcessorSet() = default;
  /// Parses "0-3,8", the format of /sys. White space around it is ignored; an empty text is the empty set. DataError
  /// for anything else.
  [[nodiscard]] static ProcessorSet parse(std::string_view text);
  /// Returns the processors that this thread may run on. Empty if the system does not report them.
  [[nodiscard]] static ProcessorSet of_this_thread();
  /// Returns the processors of this process. If OpenMP has bound this thread, or the thread that started it, to one of
  /// its places (OMP_PROC_BIND): the processors of all places; else the processors of this thread.
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

/// Returns all online processors of this machine; empty if the system does not report them.
[[nodiscard]] ProcessorSet online_processors();
/// A NUMA node: a part of the machine's memory, with the operating system's number, and the processors next to it.
struct NumaNode {
  int number = 0;
  ProcessorSet processors{};  ///< empty: a node with only memory
};
/// Returns all NUMA nodes by number, as the kernel lists them below `root`; empty when the kernel lists none.
[[nodiscard]] std::vector<NumaNode> numa_nodes(const std::string& root = "/sys");

/// Returns how many processors' time the control groups of this process allow, "1.5"; nullopt: no limit. `root` is put
/// in front of /proc and /sys.
[[nodiscard]] std::optional<double> processor_quota(const std::string& root = {});

/// Returns the number of cores of these processors: two hardware threads of one core count once.
[[nodiscard]] int count_cores(const ProcessorSet& processors);

}  // namespace lockstep
