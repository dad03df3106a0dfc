#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/comm/cost/cost_model.hpp>

namespace lockstep::comm {

/// One measured size of a path. Times are of one call, on the rank that took longest in the call.
struct CostPoint {
  std::int64_t bytes = 0;
  std::int64_t samples = 0;
  double median_s = 0;
  double min_s = 0;
  double max_s = 0;
  std::optional<double> p95_s{};  ///< 95th percentile; set only with enough samples
  std::optional<double> p99_s{};

  friend bool operator==(const CostPoint&, const CostPoint&) = default;
};

/// Errors of a model's predictions, relative to the measured times: |predicted - measured| / measured.
struct CostErrors {
  std::int64_t count = 0;  ///< number of predicted sizes; 0: too few sizes for a statement
  double median = 0;
  double p90 = 0;  ///< 90th percentile by nearest rank: the 9th of 10 sizes
  double worst = 0;

  /// Returns true if the model cannot be used for plans, because the machine was busy or the time jumps between two
  /// sizes (docs/cost.md).
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
  /// Bytes sent over a link for each byte of size: busbw = bus_factor * bytes / seconds. 0: the operation has no busbw.
  double bus_factor = 1;
  /// Meaning of limit_bytes_per_s: "one-way traffic of PCIe 5.0 x16". Empty if no limit is known.
  std::string limit_text{};
  double limit_bytes_per_s = 0;  ///< physical limit of busbw
  std::vector<CostPoint> points{};
  CostModel model{};
  CostErrors held_out{};  ///< errors for every second size, of a model fitted to the other sizes

  friend bool operator==(const CostPath&, const CostPath&) = default;
};

/// Times of messages between every two ranks, measured one pair at a time.
struct CostPairs {
  std::int64_t bytes = 0;
  std::vector<int> ranks{};  ///< ranks that were measured
  /// Seconds[from][to] of one message, in the order of `ranks`; 0 for a rank and itself.
  std::vector<std::vector<double>> seconds{};

  friend bool operator==(const CostPairs&, const CostPairs&) = default;
};

/// Measurements of lockstep-cost on one machine. cost.json is one object with these members by name (docs/cost.md).
struct CostFile {
  /// Facts about the measurement: date, host, cpu, mpi, build, command, ...
  std::map<std::string, std::string> about{};
  int ranks = 1;
  int nodes = 1;
  std::vector<CostPath> paths{};
  CostPairs pairs{};
  std::vector<std::string> left_out{};  ///< measurements that were left out, with reasons

  [[nodiscard]] const CostPath* find(const std::string& name) const;  ///< nullptr if the path was not measured

  friend bool operator==(const CostFile&, const CostFile&) = default;
};

[[nodiscard]] std::string cost_text(const CostFile& file);  ///< formats the file as JSON
/// Parses the JSON of cost_text(). Throws DataError, with source, place and expectation, if the text is not such JSON,
/// has another version, or is damaged. Damaged are times that are not above 0 or do not ascend from least to most,
/// sizes that do not ascend, a path that occurs twice, and models that comm::check() refuses.
[[nodiscard]] CostFile parse_cost(const std::string& text, const std::string& source);
[[nodiscard]] CostFile read_cost(const std::string& path);
/// Reads the text of a file for parse_cost(), in a rank that sends the text to the others. Throws DataError if the file
/// cannot be read or is larger than 64 MiB.
[[nodiscard]] std::string read_cost_text(const std::string& path);

/// Path of the gradients' all-reduces: between hosts, or between GPUs through NCCL.
enum class GradientPath : unsigned char { host, nccl };

/// Returns the name of the all-reduce path: "all_reduce" between hosts over MPI, "all_reduce/nccl" between GPUs.
[[nodiscard]] std::string all_reduce_name(GradientPath gradients);

/// Returns the file's model of the all-reduces on that path, for bucket plans. Throws DataError if the file has no such
/// model, or was measured with another number of ranks or nodes, because a ring of two says nothing about a ring of
/// eight.
[[nodiscard]] CostModel all_reduce_cost(const CostFile& file, GradientPath gradients, int ranks, int nodes,
                                        const std::string& source);

}  // namespace lockstep::comm
