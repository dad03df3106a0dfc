#include "bench/support/op_bench_options.hpp"

#include <CLI/CLI.hpp>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/version.hpp>

namespace lockstep::bench {

std::optional<OpBenchOptions> parse_op_bench(int argc, char** argv) {
  OpBenchOptions options;
  std::string device = "cpu";
  CLI::App app("Times single calls of ops.", "bench_kernels");
  app.set_version_flag("--version", build_description());
  app.add_option("--filter", options.filter, "only cases whose name contains this text");
  app.add_option("--device", device, "cpu or cuda:N")->capture_default_str();
  app.add_option("--threads", options.threads, "threads of one op on the host; 0: as many as OpenMP uses here")
      ->capture_default_str()
      ->check(CLI::Range(0, 65536));
  app.add_option("--min-time", options.min_seconds, "seconds to measure each case for")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 3600.0));
  app.add_option("--max-seconds", options.max_seconds, "starts no case after so many seconds; 0: no limit")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1e6));
  app.add_option("--json", options.json, "also writes one JSON object per line and case to this file");
  app.add_flag("--list", options.list, "prints the names of the cases and stops");
  app.footer(
      "Times are medians. GB/s are the bytes that a call must move, over its time; %copy holds them against a large\n"
      "memory-to-memory copy (bytes read + bytes written). Cases that fit a cache can pass 100 %.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {
    app.exit(e);
    return std::nullopt;
  } catch (const CLI::ParseError& e) {
    throw UsageError(e.what());
  }
  options.device = Device::parse(device);
  return options;
}

}  // namespace lockstep::bench
