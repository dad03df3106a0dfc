#include <lockstep/runtime/machine/gpu_check.hpp>

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/detail/cuda_backend.hpp>

namespace lockstep {
namespace {

std::string version_text(int version) {
  return concat(version / 1000, '.', version % 1000 / 10);
}

std::string no_gpus_text(const GpuState& state) {
  const std::string needed = version_text(state.toolkit / 1000 * 1000);
  if (state.stub) {
    return "the CUDA driver library is the toolkit's stub, made for linking; expected the driver's own libcuda.so.1 "
           "first "
           "in the library path";
  }
  if (state.driver == 0) {
    return concat("there is no NVIDIA driver, this build needs one for CUDA ", needed, " or newer");
  }
  if (state.driver / 1000 < state.toolkit / 1000) {
    return concat("the NVIDIA driver knows CUDA up to ", version_text(state.driver), ", this build needs ", needed,
                  " or newer: update the driver, or build with the toolkit of CUDA ", state.driver / 1000);
  }
  return "the NVIDIA driver shows no GPU to this process; is CUDA_VISIBLE_DEVICES right?";
}

/// Architecture of a build, such as "100a-real" with the number 100. The letter 'a' means that the code runs on this
/// architecture alone (exact). The letter 'f' means that the code runs on this and newer GPUs of the same major
/// version. "-real" means a binary without PTX.
struct Architecture {
  int number = 0;
  bool exact = false;
  bool family = false;
  bool binary = true;
  bool ptx = true;
};

std::optional<Architecture> architecture_of(std::string_view text) {
  Architecture result;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), result.number);
  if (error != std::errc()) {
    return std::nullopt;
  }
  const std::string_view rest = text.substr(static_cast<std::size_t>(end - text.data()));
  result.exact = rest.starts_with('a');
  result.family = rest.starts_with('f');
  result.ptx = !rest.ends_with("-real");
  result.binary = !rest.ends_with("-virtual");
  return result;
}

}  // namespace

bool runs_on(std::string_view architectures, int major, int minor) {
  const int have = major * 10 + minor;
  for (std::string_view rest = architectures; !rest.empty();) {
    const std::size_t comma = rest.find(',');
    const std::optional<Architecture> built = architecture_of(rest.substr(0, comma));
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    if (!built) {
      return true;
    }
    const bool same = built->number == have;
    const bool relative = built->number / 10 == major && built->number <= have;
    const bool later = (built->binary && relative) || (built->ptx && built->number <= have);
    if (built->exact ? same : built->family ? relative : later) {
      return true;
    }
  }
  return architectures.empty();
}

int oldest_architecture(std::string_view architectures) {
  int oldest = std::numeric_limits<int>::max();
  for (std::string_view rest = architectures; !rest.empty();) {
    const std::size_t comma = rest.find(',');
    const std::optional<Architecture> built = architecture_of(rest.substr(0, comma));
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    oldest = std::min(oldest, built ? built->number : 0);
  }
  return architectures.empty() ? 0 : oldest;
}

std::string why_unusable(const GpuState& state, GpuMemory memory) {
  if (state.device.kind != DeviceKind::cuda) {
    return concat("device is ", state.device, ", expected a CUDA device");
  }
  if (state.devices == 0) {
    return concat(state.device, " cannot be used: ", no_gpus_text(state));
  }
  if (state.device.index < 0 || state.device.index >= state.devices) {
    return concat(state.device, " does not exist: this process can use ", state.devices, " CUDA device(s)");
  }
  const std::string who = concat(state.device, " (", state.name, "): ");
  if (!runs_on(state.built_for, state.major, state.minor)) {
    return concat(who, "its compute capability is ", state.major, '.', state.minor, ", this build is for ",
                  state.built_for, "; configure with -DLOCKSTEP_CUDA_ARCHITECTURES=", state.major, state.minor,
                  ", or take another device");
  }
  if (state.mode == GpuState::Mode::prohibited) {
    return concat(who,
                  "its compute mode is prohibited; take another device, or have the mode set with nvidia-smi -c 0");
  }
  if (!state.no_context.empty()) {
    return concat(who, "no context can be made (", state.no_context, "): ",
                  state.mode == GpuState::Mode::exclusive
                      ? "the device is in exclusive-process mode and another process has it; take another device, or "
                        "end that process"
                      : "another process holds the device or all of its memory; take another device, or end that "
                        "process");
  }
  if (memory == GpuMemory::needed && state.free < state.total / 1000) {
    return concat(who, state.free, " of ", state.total,
                  " bytes are free; take another device, or end the process that holds them (nvidia-smi lists them)");
  }
  return {};
}

void check_gpu(Device device, GpuMemory memory) {
  const std::string why = why_unusable(gpu_state(device), memory);
  require<DeviceError>(why.empty(), why);
}

namespace detail {

std::string why_no_gpus(const GpuState& state) {
  return state.devices > 0 ? std::string() : no_gpus_text(state);
}

}  // namespace detail
}  // namespace lockstep
