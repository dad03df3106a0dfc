#pragma once

#include <optional>
#include <string>

#include <lockstep/runtime/machine/device.hpp>

namespace lockstep::bench {

struct OpBenchOptions {
  std::string filter;
  std::string json;
  Device device;
  int threads = 0;
  double min_seconds = 0.3;
  double max_seconds = 0;  ///< no case starts later; 0: no limit
  bool list = false;
};

/// The command line of bench_kernels. Empty when it asked for --help or --version, which is then printed. UsageError.
[[nodiscard]] std::optional<OpBenchOptions> parse_op_bench(int argc, char** argv);

}  // namespace lockstep::bench
