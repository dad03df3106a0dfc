#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// A set of processors (hardware threads), with the operating system's numbers. A plain value.
class ProcessorSet {
 public:
  ProcessorSet() = default;
  /// Parses the format of /sys, for example "0-3,8". Ignores white space around the text; an empty text is the empty
  /// set. Throws DataError for anything else.
  [[nodiscard]] static ProcessorSet parse(std::string_view text);
  /// Returns the processors on which this thread may run; an empty set if the system does not report them.
  [[nodiscard]] static ProcessorSet of_this_thread();
  /// Returns the processors of this process. If OpenMP has bound this thread, or the thread that started this thread,
  /// to a place (OMP_PROC_BIND), returns the processors of all places. Otherwise returns the processors of this thread.
  [[nodiscard]] static ProcessorSet of_process();
  [[nodiscard]] static ProcessorSet of(const std::vector<int>& numbers);

  [[nodiscard]] int count() const { return static_cast<int>(numbers_.size()); }
  [[nodiscard]] bool empty() const { return numbers_.empty(); }
  [[nodiscard]] bool contains(int processor) const;
  [[nodiscard]] const std::vector<int>& numbers() const { return numbers_; }  ///< numbers in ascending order
  [[nodiscard]] ProcessorSet intersection(const ProcessorSet& other) const;
  [[nodiscard]] std::string text() const;  ///< text such as "0-3,8"; "none" for an empty set

  friend bool operator==(const ProcessorSet&, const ProcessorSet&) = default;

 private:
  std::vector<int> numbers_;
};

/// Returns all online processors of this machine; an empty set if the system does not report them.
[[nodiscard]] ProcessorSet online_processors();
/// A NUMA node, a part of the machine's memory: the operating system's number and the processors next to the memory.
struct NumaNode {
  int number = 0;
  ProcessorSet processors{};  ///< processors next to the node's memory; empty if the node has only memory
};
/// Returns all NUMA nodes by number, as the kernel lists them below `root`; an empty vector if it lists none.
[[nodiscard]] std::vector<NumaNode> numa_nodes(const std::string& root = "/sys");

/// Returns the processor time that this process's control groups allow, in processors, for example 1.5; nullopt
/// if there is no limit. `root` is put in front of /proc and /sys.
[[nodiscard]] std::optional<double> processor_quota(const std::string& root = {});

/// Returns the number of cores of these processors. Two hardware threads of one core count as one.
[[nodiscard]] int count_cores(const ProcessorSet& processors);

}  // namespace lockstep
