#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/comm/cost/cost_model.hpp>

namespace lockstep::comm {

/// Times of an operation at one size. Each time is the time of one call on that call's slowest rank.
struct CostPoint {
  std::int64_t bytes = 0;
  std::int64_t samples = 0;
  double median_s = 0;
  double min_s = 0;
  double max_s = 0;
  std::optional<double> p95_s{};  ///< 95th percentile of the times; empty if there are too few samples
  std::optional<double> p99_s{};

  friend bool operator==(const CostPoint&, const CostPoint&) = default;
};

/// Errors of a model's predictions, relative to the measured times: |predicted - measured| / measured.
struct CostErrors {
  std::int64_t count = 0;  ///< number of sizes that were predicted and compared; 0 if too few were measured
  double median = 0;
  double p90 = 0;  ///< 90th percentile by nearest rank: of 10 sizes, the 9th smallest error
  double worst = 0;

  /// Returns true if the errors are so large that bucket plans should not use the model. Usual causes are a busy
  /// machine and a library whose time jumps between two sizes (docs/cost.md).
  [[nodiscard]] bool high() const {
    constexpr double kMedian = 0.15;
    constexpr double kP90 = 0.35;
    return count > 0 && (median > kMedian || p90 > kP90);
  }

  friend bool operator==(const CostErrors&, const CostErrors&) = default;
};

/// Cost of one operation by its size: the measured points, the model fitted to them, and the physical limit.
struct CostPath {
  std::string name;  ///< name of the operation: "copy/host/memcpy", "all_reduce"
  std::string text;  ///< description for people: "all-reduce, 4 ranks, Open MPI"
  /// Bytes that cross a link for each byte of the operation's size. The bandwidth of the link, busbw, is bus_factor *
  /// bytes / seconds. 0 if the operation has no busbw.
  double bus_factor = 1;
  /// Description of the limit in limit_bytes_per_s: "one-way traffic of PCIe 5.0 x16". Empty if no limit is known.
  std::string limit_text{};
  double limit_bytes_per_s = 0;  ///< physical limit of the link's bandwidth (busbw); 0 if unknown
  std::vector<CostPoint> points{};
  CostModel model{};
  CostErrors held_out{};  ///< held_out_errors() of the points: prediction errors at sizes left out of the fit

  friend bool operator==(const CostPath&, const CostPath&) = default;
};

/// Times of messages between every two ranks, measured one pair at a time.
struct CostPairs {
  std::int64_t bytes = 0;
  std::vector<int> ranks{};  ///< ranks between which messages were measured
  /// seconds[i][j] is the time of one message from ranks[i] to ranks[j]; 0 if i == j.
  std::vector<std::vector<double>> seconds{};

  friend bool operator==(const CostPairs&, const CostPairs&) = default;
};

/// Results of the program lockstep-cost on one machine. In cost.json, each member is stored by its name (docs/cost.md).
struct CostFile {
  /// Facts about the measurement: date, host, cpu, mpi, build, command, ...
  std::map<std::string, std::string> about{};
  int ranks = 1;
  int nodes = 1;
  std::vector<CostPath> paths{};
  CostPairs pairs{};
  std::vector<std::string> left_out{};  ///< measurements that were left out, with reasons

  [[nodiscard]] const CostPath* find(const std::string& name) const;  ///< returns nullptr if no such path was measured

  friend bool operator==(const CostFile&, const CostFile&) = default;
};

[[nodiscard]] std::string cost_text(const CostFile& file);  ///< formats the file as JSON
/// Parses the JSON of cost_text(). Throws DataError if the text is not the JSON of a CostFile, has another version, or
/// is damaged. The error names `source`, the part of the text, and what was expected there. Text counts as damaged in
/// these cases: times are not above 0; the minimum, median, percentiles and maximum of a size do not ascend; the sizes
/// do not ascend; a path occurs twice; comm::check() refuses a model.
[[nodiscard]] CostFile parse_cost(const std::string& text, const std::string& source);
[[nodiscard]] CostFile read_cost(const std::string& path);
/// Returns the text of the file at `path`. One rank reads and sends the text, and then all ranks call parse_cost().
/// Throws DataError if the file cannot be read or is larger than 64 MiB.
[[nodiscard]] std::string read_cost_text(const std::string& path);

/// Path of the gradients' all-reduces: between hosts, or between GPUs through NCCL.
enum class GradientPath : unsigned char { host, nccl };

/// Returns the name of the all-reduce path: "all_reduce" between hosts over MPI, "all_reduce/nccl" between GPUs.
[[nodiscard]] std::string all_reduce_name(GradientPath gradients);

/// Returns the model in `file` for the all-reduces on path `gradients`, for bucket plans. Throws DataError if `file`
/// has no such model, or was measured with another number of ranks or nodes (a ring of two ranks says nothing about a
/// ring of eight).
[[nodiscard]] CostModel all_reduce_cost(const CostFile& file, GradientPath gradients, int ranks, int nodes,
                                        const std::string& source);

}  // namespace lockstep::comm
