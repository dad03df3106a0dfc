#include <lockstep/nn/plan/gpu_prediction.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iomanip>
#include <iterator>
#include <memory>
#include <set>
#include <sstream>
#include <utility>
#include <variant>

#include <lockstep/kernels/conv2d.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/text.hpp>
#include <lockstep/runtime/base/units.hpp>

namespace lockstep::nn {
namespace {

constexpr std::size_t kKilo = 1024;

// Values of NVIDIA's data sheets: A100 80GB (June 2021), H100 (SXM and PCIe), H200, GH200 (the version with 96 GB),
// B200 in HGX. Rates are for dense matrices (half of the sparse rates). Shared memory per multiprocessor: CUDA C++
// Programming Guide, "Technical Specifications per Compute Capability".
constexpr GpuDescription kGpus[] = {
    {"a100", "NVIDIA A100 80GB (SXM)", 80e9, 2.039e12, 312e12, 156e12, 19.5e12, 19.5e12, {108, 164 * kKilo}},
    {"h100", "NVIDIA H100 (SXM)", 80e9, 3.35e12, 989.4e12, 494.7e12, 66.9e12, 66.9e12, {132, 228 * kKilo}},
    {"h100-pcie", "NVIDIA H100 (PCIe)", 80e9, 2.0e12, 756e12, 378e12, 51e12, 51e12, {114, 228 * kKilo}},
    {"h200", "NVIDIA H200 (SXM)", 141e9, 4.8e12, 989.4e12, 494.7e12, 66.9e12, 66.9e12, {132, 228 * kKilo}},
    {"gh200", "NVIDIA GH200", 96e9, 4.0e12, 989.4e12, 494.7e12, 66.9e12, 66.9e12, {132, 228 * kKilo}},
    {"b200", "NVIDIA B200 (SXM)", 180e9, 7.7e12, 2250e12, 1125e12, 75e12, 37e12, {148, 228 * kKilo}},
};

/// Share of the data sheet's bandwidth that a copy on the GPU reaches: 3.0 TB/s on an H100, 4.3 TB/s on an H200,
/// counting read and written bytes. Published values for an H100 (SXM) are 2,903 GB/s
/// (github.com/aigatech/vpbenchmarking) and 2,959 GB/s (issue 392 of github.com/NVIDIA/cuda-samples). A GH200 with
/// 4,000 GB/s reaches 3,615 GB/s when it only reads, and 3,705 GB/s when it only writes
/// (github.com/mredenti/PowerCapping). All other GPUs in kGpus are assumed to reach the same share.
constexpr double kCopy = 0.896;

/// Assumed shares of a data sheet's bandwidth and arithmetic rate that kernels reach, and the seconds per launch.
/// `seconds` is the member of PredictedTime that these assumptions give.
struct Efficiency {
  double PredictedTime::*seconds;
  double library_memory;   ///< share of the bandwidth that cuDNN and cuBLASLt reach
  double own_memory;       ///< share of the bandwidth that our kernels reach
  double arithmetic;       ///< share of the arithmetic rate that kernels reach
  double slow_arithmetic;  ///< share of the arithmetic rate that a slow convolution reaches at most
  double launch_s;
};

// Assumptions for expected_s: our kernels reach 0.85 of a copy's bandwidth, and libraries reach 0.78. A large bf16
// matrix product reaches 0.8 of the data sheet's bf16 rate, and a convolution reaches a little less than 0.8 of the
// product's rate. `arithmetic` is the product of these two shares, 0.62. Two dependent nodes of a CUDA graph begin
// about 1.2 us apart. For low_s, all shares are about an eighth smaller.
constexpr Efficiency kEfficiencies[] = {
    {&PredictedTime::limit_s, 1, 1, 1, 1, 0},
    {&PredictedTime::expected_s, 0.78 * kCopy, 0.85 * kCopy, 0.62, 0.35, 1.2e-6},
    {&PredictedTime::low_s, 0.68 * kCopy, 0.74 * kCopy, 0.55, 0.31, 1.5e-6},
};

/// Factor on the arithmetic rate of a cuDNN engine that also computes a batch norm's sums. cuDNN compiles this engine
/// at run time for the instructions of an A100. On a newer GPU, A100 instructions reach about 0.65 of the rate of the
/// newer instructions.
constexpr double kServingRate = 0.65;

constexpr std::string_view kAgain = "again ";  // prefix of Call::op for a forward call that is repeated in backward

bool of_library(const Call& call) {
  std::string_view op = call.op;
  op.remove_prefix(op.starts_with(kAgain) ? kAgain.size() : 0);
  return op.starts_with("conv") || op.starts_with("matmul ");
}

/// Returns the data sheet's arithmetic rate for a call, in operations per second. For a library call, the narrowest
/// floating type among the call's tensors selects the rate.
double rate_of(const Plan& plan, const Call& call, const GpuDescription& gpu, bool tf32) {
  std::size_t narrowest = sizeof(double);
  const auto look_at = [&](const std::vector<SlotId>& slots) {
    for (const SlotId slot : slots) {
      const DType dtype = slot.valid() ? plan.slots()[static_cast<std::size_t>(slot.index)].dtype : DType::f64;
      if (is_floating(dtype)) {
        narrowest = std::min(narrowest, size_of(dtype));
      }
    }
  };
  look_at(call.reads);
  look_at(call.writes);
  if (narrowest == sizeof(double)) {
    return gpu.flops_64;
  }
  if (!of_library(call)) {
    return gpu.flops_32;
  }
  return narrowest < sizeof(float) ? gpu.flops_16 : tf32 ? gpu.flops_tf32 : gpu.flops_32;
}

/// Returns the op without its provider: "conv2d forward" for "conv2d forward onednn". A prefix "again " stays in the
/// result.
std::string kind_of(const Call& call) {
  const std::size_t first = call.op.find(' ', call.op.starts_with(kAgain) ? kAgain.size() : 0);
  return call.op.substr(0, first == std::string::npos ? first : call.op.find(' ', first + 1));
}

/// Returns the keys ("layer1.0.conv1 forward") of the convolutions that are slow in every library. With few channels,
/// tensor cores are partly idle. With a stride, the data gradient also writes elements to which no product contributes.
std::set<std::string> slow_convolutions(const Plan& plan) {
  constexpr std::int64_t kFewChannels = 128;
  std::set<std::string> slow;
  for (const LibraryPlan& library : plan.library_plans()) {
    const auto* const conv = std::get_if<std::shared_ptr<const ops::ConvPlan>>(&library.plan);
    if (conv == nullptr) {
      continue;
    }
    const ops::ConvDesc& desc = (*conv)->desc();
    const bool strided = std::any_of(desc.stride.begin(), desc.stride.end(), [](std::int64_t by) { return by > 1; });
    if (desc.in_channels / desc.groups < kFewChannels || ((*conv)->pass() == ops::ConvPass::backward_data && strided)) {
      slow.insert(library.key.substr(0, library.key.find(" beside a norm")));
    }
  }
  return slow;
}

std::string milliseconds(double seconds) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(3) << 1e3 * seconds;
  return out.str();
}

/// Sums over the calls of one kind, for one line of text().
struct Line {
  int calls = 0;
  int launches = 0;
  double bytes = 0;
  double flops = 0;
  /// Part of time.limit_s in calls that are limited by the arithmetic rate, not by the bandwidth.
  double arithmetic_s = 0;
  PredictedTime time{};

  void operator+=(const Line& other) {
    calls += other.calls;
    launches += other.launches;
    bytes += other.bytes;
    flops += other.flops;
    arithmetic_s += other.arithmetic_s;
    time += other.time;
  }
};

void print(std::ostream& out, const std::string& name, const Line& line) {
  const double share = line.time.limit_s > 0 ? 100 * (1 - line.arithmetic_s / line.time.limit_s) : 0;
  out << std::left << std::setw(34) << name << std::right << std::fixed << std::setprecision(2) << std::setw(6)
      << line.calls << std::setw(10) << line.launches << std::setw(10) << line.bytes / 1e6 << std::setw(11)
      << line.flops / 1e9 << std::setw(11) << milliseconds(line.time.limit_s) << std::setw(10)
      << milliseconds(line.time.expected_s) << std::setw(10) << milliseconds(line.time.low_s) << std::setprecision(0)
      << std::setw(8) << share << " %\n";
}

}  // namespace

std::string known_gpu_names() {
  return joined(kGpus, ", ", &GpuDescription::name);
}

const GpuDescription& known_gpu(std::string_view name) {
  const auto* const found =
      std::find_if(std::begin(kGpus), std::end(kGpus), [&](const GpuDescription& gpu) { return gpu.name == name; });
  require<UsageError>(found != std::end(kGpus), "GPU '", name, "' is not described, expected one of ",
                      known_gpu_names());
  return *found;
}

PredictedTime& PredictedTime::operator+=(const PredictedTime& other) {
  limit_s += other.limit_s;
  expected_s += other.expected_s;
  low_s += other.low_s;
  return *this;
}

GpuPrediction::GpuPrediction(const Plan& plan, const GpuDescription& gpu, const GpuPredictionOptions& options)
    : gpu_(&gpu), options_(options) {
  require<UsageError>(options.micro_batches >= 1, "GPU prediction: ", options.micro_batches,
                      " micro-batches, expected at least 1");
  const std::set<std::string> slow = slow_convolutions(plan);
  for (const Call& call : plan.calls()) {
    const double rate = rate_of(plan, call, gpu, options.tf32);
    std::string pass = kind_of(call);
    pass.erase(0, pass.rfind(' ') + 1);
    const std::size_t serves = std::min(pass.find("_with_sums"), pass.find("_for_norm"));
    const bool is_slow = slow.contains(concat(call.layer, ' ', pass.substr(0, serves)));
    PredictedTime& time = calls_.emplace_back();
    for (const Efficiency& reached : kEfficiencies) {
      const double served = serves != std::string::npos && reached.arithmetic < 1 ? kServingRate : 1;
      const double arithmetic = std::min(reached.arithmetic * served, is_slow ? reached.slow_arithmetic : 1);
      const double bandwidth = gpu.bytes_per_s * (of_library(call) ? reached.library_memory : reached.own_memory);
      time.*reached.seconds =
          std::max(call.bytes / bandwidth, call.flops / (rate * arithmetic)) + call.launches * reached.launch_s;
    }
    arithmetic_.push_back(call.flops / rate > call.bytes / gpu.bytes_per_s);
  }
  if (options.update_bytes > 0) {
    for (const Efficiency& reached : kEfficiencies) {
      update_.*reached.seconds = options.update_bytes / (gpu.bytes_per_s * reached.own_memory) + reached.launch_s;
    }
  }
}

PredictedTime GpuPrediction::step() const {
  PredictedTime sum = update_;
  for (int i = 0; i < options_.micro_batches; ++i) {
    for (const PredictedTime& call : calls_) {
      sum += call;
    }
  }
  return sum;
}

std::string GpuPrediction::text(const Plan& plan) const {
  std::vector<std::pair<std::string, Line>> lines;
  for (std::size_t i = 0; i < calls_.size(); ++i) {
    const Call& call = plan.calls()[i];
    const std::string kind = kind_of(call);
    auto at = std::find_if(lines.begin(), lines.end(), [&](const auto& line) { return line.first == kind; });
    if (at == lines.end()) {
      at = lines.insert(at, {kind, Line()});
    }
    at->second += {.calls = 1,
                   .launches = call.launches,
                   .bytes = call.bytes,
                   .flops = call.flops,
                   .arithmetic_s = arithmetic_[i] ? calls_[i].limit_s : 0,
                   .time = calls_[i]};
  }
  Line sum;
  for (int i = 0; i < options_.micro_batches; ++i) {
    for (const auto& [kind, line] : lines) {
      sum += line;
    }
  }
  std::ostringstream out;
  out << "on one " << gpu_->title << ", " << digits(gpu_->bytes_per_s / 1e12, 2) << " TB/s, of which a copy reaches "
      << digits(kCopy * gpu_->bytes_per_s / 1e12, 2) << ", predicted and not measured";
  if (options_.micro_batches > 1) {
    out << "; a line is of one of " << options_.micro_batches << " micro-batches";
  }
  out << '\n'
      << std::left << std::setw(34) << "op" << std::right << std::setw(6) << "calls" << std::setw(10) << "launches"
      << std::setw(10) << "MB" << std::setw(11) << "GFLOP" << std::setw(11) << "limit ms" << std::setw(10) << "expected"
      << std::setw(10) << "low" << std::setw(10) << "memory" << '\n';
  for (const auto& [kind, line] : lines) {
    print(out, kind, line);
  }
  if (options_.update_bytes > 0) {
    const Line update{.calls = 1, .launches = 1, .bytes = options_.update_bytes, .time = update_};
    print(out, "update", update);
    sum += update;
  }
  print(out, "step", sum);
  const double samples =
      options_.samples > 0 ? options_.samples : static_cast<double>(plan.batch() * options_.micro_batches);
  out << std::left << std::setw(34) << "samples a second, of one GPU" << std::right << std::setw(6 + 10 + 10 + 11 + 11)
      << digits(samples / sum.time.limit_s, 0) << std::setw(10) << digits(samples / sum.time.expected_s, 0)
      << std::setw(10) << digits(samples / sum.time.low_s, 0) << '\n';
  return out.str();
}

}  // namespace lockstep::nn
