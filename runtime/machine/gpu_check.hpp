#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <lockstep/runtime/machine/device.hpp>

/// Whether a GPU can be used, in words: what is missing, on which device, and what to do about it. A machine without a
/// driver, a driver that is too old and a GPU that another process has are no errors of the program.
namespace lockstep {

/// What the driver and the device say, found out in this order; what comes after the first trouble stays as it is here.
/// CUDA versions are 13000 for 13.0.
struct GpuState {
  enum class Mode : unsigned char { shared, exclusive, prohibited };  ///< who may make contexts on the device
  Device device{};
  int toolkit = 0;           ///< CUDA version of this build
  int driver = 0;            ///< newest CUDA version that the driver knows; 0: there is no driver
  bool stub = false;         ///< the library found is the toolkit's, for linking, and not the driver's
  int devices = 0;           ///< that this process can use
  std::string name{};        ///< "NVIDIA H200"
  int major = 0, minor = 0;  ///< compute capability
  std::string built_for{};   ///< architectures of this build, as for CMake, with commas: "90,100-real"
  Mode mode = Mode::shared;
  std::string no_context{};         ///< why no context can be made: name of the error; empty: there is one
  std::size_t free = 0, total = 0;  ///< bytes, with our context on it
};

/// Whether kernels of the context take memory of their own, or out of what the program already holds.
enum class GpuMemory : bool { held, needed };

/// Why the device cannot be used and what to do, beginning with "cuda:0 (NVIDIA H200): " where they are known; empty:
/// it can. A driver is new enough when its major version is that of the toolkit (minor versions are compatible). With
/// `needed` a thousandth of the memory must be free. Pure.
[[nodiscard]] std::string why_unusable(const GpuState& state, GpuMemory memory = GpuMemory::needed);

/// Whether code of one of `architectures` (GpuState::built_for) runs on a GPU of this compute capability: binaries on
/// their major version from their minor on, PTX on everything from there on, "90a" on nothing newer, "100f" on
/// the later members of its family: the same major version. True for lists that name no architecture ("native", "all").
/// Pure.
[[nodiscard]] bool runs_on(std::string_view architectures, int major, int minor);

/// Asks driver and device, and makes the device's context, which the caller is about to use; the thread's current
/// device stays. CudaError when the driver answers with an error that is none of the above. In a build without CUDA
/// DeviceError.
[[nodiscard]] GpuState gpu_state(Device device);

/// DeviceError with why_unusable(). What a CudaContext begins with.
void check_gpu(Device device, GpuMemory memory = GpuMemory::needed);

/// Why num_gpus() is 0, for people: no CUDA in this build, no driver, a driver that is too old, no device. Empty when
/// there are GPUs. Makes no context.
[[nodiscard]] std::string why_no_gpus();

}  // namespace lockstep
