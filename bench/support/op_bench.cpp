#include "bench/support/op_bench.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

#include <lockstep/runtime/copy.hpp>
#include <lockstep/runtime/error.hpp>
#include <lockstep/runtime/version.hpp>

namespace lockstep::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kHelp =
    "usage: bench_kernels [options]\n"
    "  --filter TEXT    only cases whose name contains TEXT\n"
    "  --device DEVICE  cpu (default), cuda:N\n"
    "  --threads N      threads of one op on the host; 0 (default): as many as OpenMP uses here\n"
    "  --min-time S     seconds to measure each case for (default 0.3)\n"
    "  --json FILE      also writes one JSON object per line and case\n"
    "  --list           prints the names and stops\n"
    "  --help           prints this and stops\n"
    "Times are medians. GB/s are the bytes that a call must move, over its time; %copy holds them against a large\n"
    "memory-to-memory copy (bytes read + bytes written). Cases that fit a cache can pass 100 %.\n";

struct Options {
  std::string filter;
  std::string json;
  Device device;
  int threads = 0;
  double min_seconds = 0.3;
  bool list = false;
  bool help = false;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    const auto value = [&]() -> std::string {
      require<UsageError>(i + 1 < argc, name, " needs a value");
      return argv[++i];
    };
    const auto number = [&]() -> double {
      const std::string text = value();
      std::size_t used = 0;
      double result = -1;
      try {
        result = std::stod(text, &used);
      } catch (const std::exception&) {
        used = 0;
      }
      require<UsageError>(used == text.size() && result >= 0 && result <= 1e6, name, " is '", text,
                          "', expected a number from 0 to 1000000");
      return result;
    };
    if (name == "--filter") {
      options.filter = value();
    } else if (name == "--device") {
      options.device = Device::parse(value());
    } else if (name == "--threads") {
      options.threads = static_cast<int>(number());
    } else if (name == "--min-time") {
      options.min_seconds = number();
    } else if (name == "--json") {
      options.json = value();
    } else if (name == "--list") {
      options.list = true;
    } else if (name == "--help") {
      options.help = true;
    } else {
      throw UsageError(concat("unknown option ", name, "; --help lists them"));
    }
  }
  return options;
}

double seconds_of(Context& context, std::size_t calls, const std::function<void()>& call) {
  const auto begin = Clock::now();
  for (std::size_t i = 0; i < calls; ++i) {
    call();
  }
  context.synchronize();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Median seconds of one call. Short calls are timed in groups, so that the clock does not count.
double median_seconds(Context& context, double min_seconds, const std::function<void()>& call) {
  constexpr double kGroupSeconds = 1e-3;
  constexpr std::size_t kMinSamples = 5;
  seconds_of(context, 1, call);  // warm-up
  const double once = std::max(seconds_of(context, 1, call), 1e-9);
  const auto group = static_cast<std::size_t>(std::clamp(kGroupSeconds / once, 1.0, 1e5));
  std::vector<double> samples;
  double total = 0;
  while (samples.size() < kMinSamples || total < min_seconds) {
    const double seconds = seconds_of(context, group, call);
    samples.push_back(seconds / static_cast<double>(group));
    total += seconds;
  }
  std::nth_element(samples.begin(), samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2), samples.end());
  return samples[samples.size() / 2];
}

/// Bytes per second of a copy too large for any cache.
double copy_bandwidth(Context& context, double min_seconds) {
  const Shape shape{std::int64_t{128} << 20};
  const Tensor src = Tensor::zeros(context, shape, DType::u8);
  const Tensor dst = Tensor::zeros(context, shape, DType::u8);
  const double seconds = median_seconds(context, min_seconds, [&] { copy(context, src, dst); });
  return 2.0 * static_cast<double>(shape.numel()) / seconds;
}

std::string json_text(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      result += '\\';
    }
    result += c;
  }
  return result + '"';
}

int run(const Options& options, const std::vector<testing::OpCase>& cases) {
  std::vector<const testing::OpCase*> chosen;
  std::size_t width = 4;
  for (const testing::OpCase& item : cases) {
    if (item.name.find(options.filter) != std::string::npos) {
      chosen.push_back(&item);
      width = std::max(width, item.name.size());
    }
  }
  require<UsageError>(!chosen.empty(), "no case contains '", options.filter, "'; --list prints the names");
  if (options.list) {
    for (const testing::OpCase* item : chosen) {
      std::printf("%s\n", item->name.c_str());
    }
    return exit_code::kFinished;
  }
  std::ofstream json;
  if (!options.json.empty()) {
    json.open(options.json);
    require<UsageError>(json.good(), "cannot write ", options.json);
  }

  std::unique_ptr<Context> context;
  int threads = 0;
  if (options.device == Device::cpu()) {
    auto cpu = std::make_unique<CpuContext>(CpuContext::Options{.threads = options.threads});
    threads = cpu->threads();
    context = std::move(cpu);
  } else {
    context = make_context(options.device);
  }
  const double bandwidth = copy_bandwidth(*context, options.min_seconds);
  std::printf("%s\n%s, %d threads; copy %.1f GB/s\n\n", build_description().c_str(), to_string(options.device).c_str(),
              threads, bandwidth * 1e-9);
  std::printf("%-*s %12s %9s %9s %7s\n", static_cast<int>(width), "case", "median", "GB/s", "GFLOP/s", "%copy");

  for (const testing::OpCase* item : chosen) {
    double seconds = 0;
    try {
      testing::OpInstance instance(*item, *context);
      seconds = median_seconds(*context, options.min_seconds, [&] { instance.enqueue(); });
    } catch (const UnsupportedError& error) {
      std::printf("%-*s %s\n", static_cast<int>(width), item->name.c_str(), error.what());
      continue;
    }
    const double gb = item->bytes / seconds * 1e-9;
    const double gflop = item->flops / seconds * 1e-9;
    const double share = 100 * item->bytes / seconds / bandwidth;
    std::printf("%-*s %9.1f us %9.2f %9.2f %7.1f\n", static_cast<int>(width), item->name.c_str(), seconds * 1e6, gb,
                gflop, share);
    std::fflush(stdout);
    if (json.is_open()) {
      json << "{\"name\": " << json_text(item->name) << ", \"dtype\": \"" << item->dtype << "\", \"device\": \""
           << options.device << "\", \"threads\": " << threads << ", \"seconds\": " << seconds
           << ", \"bytes\": " << item->bytes << ", \"flops\": " << item->flops << ", \"gb_per_s\": " << gb
           << ", \"gflop_per_s\": " << gflop << ", \"copy_gb_per_s\": " << bandwidth * 1e-9
           << ", \"percent_of_copy\": " << share << "}\n";
    }
  }
  if (json.is_open()) {
    json.close();
    require<Error>(json.good(), "writing ", options.json, " failed");
  }
  return exit_code::kFinished;
}

}  // namespace

int op_bench_main(int argc, char** argv, const std::vector<testing::OpCase>& cases) {
  try {
    const Options options = parse(argc, argv);
    if (options.help) {
      std::fputs(kHelp, stdout);
      return exit_code::kFinished;
    }
    return run(options, cases);
  } catch (const Error& error) {
    std::fprintf(stderr, "bench_kernels: %s\n", error.what());
    return error.code();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_kernels: %s\n", error.what());
    return exit_code::kFailure;
  }
}

}  // namespace lockstep::bench
