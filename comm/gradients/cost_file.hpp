#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/comm/gradients/cost_model.hpp>

namespace lockstep::comm {

/// One size of a path as it was measured. Seconds of one call, of the rank that took longest in it.
struct CostPoint {
  std::int64_t bytes = 0;
  std::int64_t samples = 0;
  double median_s = 0;
  double min_s = 0;
  double max_s = 0;
  std::optional<double> p95_s{};  ///< only from samples enough
  std::optional<double> p99_s{};

  friend bool operator==(const CostPoint&, const CostPoint&) = default;
};

/// Relative errors |predicted - measured| / measured of a model.
struct CostErrors {
  std::int64_t count = 0;  ///< of sizes that were predicted; 0: too few sizes to say anything
  double median = 0;
  double p90 = 0;  ///< by nearest rank: of 10 sizes the 9th
  double worst = 0;

  friend bool operator==(const CostErrors&, const CostErrors&) = default;
};

/// What one operation costs by size: points, the model fitted to them, and what it is held against.
struct CostPath {
  std::string name;          ///< "copy/host/memcpy", "all_reduce"
  std::string text;          ///< for people: "all-reduce, 4 ranks, Open MPI"
  double bus_factor = 1;     ///< bytes that pass a link per byte of size: busbw = bus_factor * bytes / seconds; 0: none
  std::string limit_text{};  ///< what limit_bytes_per_s is, "one-way traffic of PCIe 5.0 x16"; empty: no limit is known
  double limit_bytes_per_s = 0;  ///< on the same scale as busbw
  std::vector<CostPoint> points{};
  CostModel model{};
  CostErrors held_out{};  ///< of a model fitted to every second size, on the others

  friend bool operator==(const CostPath&, const CostPath&) = default;
};

/// Between every two ranks, one pair at a time.
struct CostPairs {
  std::int64_t bytes = 0;
  std::vector<int> ranks{};                    ///< which ranks were measured
  std::vector<std::vector<double>> seconds{};  ///< [from][to] one way, in the order of `ranks`; 0: the same rank

  friend bool operator==(const CostPairs&, const CostPairs&) = default;
};

/// What lockstep-cost found out about a machine. cost.json is one object of these members, by their names
/// (docs/cost.md).
struct CostFile {
  std::map<std::string, std::string> about{};  ///< date, host, cpu, mpi, build, command, ...
  int ranks = 1;
  int nodes = 1;
  std::vector<CostPath> paths{};
  CostPairs pairs{};
  std::vector<std::string> left_out{};  ///< what was not measured, and why

  [[nodiscard]] const CostPath* find(const std::string& name) const;  ///< nullptr: not measured

  friend bool operator==(const CostFile&, const CostFile&) = default;
};

[[nodiscard]] std::string cost_text(const CostFile& file);  ///< as JSON
/// DataError naming source, place and what was expected when the text is no such JSON, of another version or damaged
/// (times that are not above 0, sizes that do not ascend, models that comm::check() refuses).
[[nodiscard]] CostFile parse_cost(const std::string& text, const std::string& source);
[[nodiscard]] CostFile read_cost(const std::string& path);
/// The text for parse_cost(), for a rank that sends it to others. DataError when it cannot be read or has over 64 MiB.
[[nodiscard]] std::string read_cost_text(const std::string& path);

/// What gradients take from rank to rank.
enum class GradientPath : unsigned char { host, nccl };

/// The path of an all-reduce: "all_reduce" between hosts over MPI, "all_reduce/nccl" between GPUs.
[[nodiscard]] std::string all_reduce_name(GradientPath gradients);

/// The all-reduce model of that path in a file, for bucket plans. DataError when it has none, or was measured with
/// another number of ranks or nodes: a ring of two says nothing about one of eight.
[[nodiscard]] CostModel all_reduce_cost(const CostFile& file, GradientPath gradients, int ranks, int nodes,
                                        const std::string& source);

}  // namespace lockstep::comm
