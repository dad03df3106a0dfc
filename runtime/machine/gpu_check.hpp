#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <lockstep/runtime/machine/device.hpp>

/// Explains in a text why a GPU cannot be used: what is missing, on which device, and what to do. The usual reasons are
/// not errors of the program: a missing driver, a driver that is too old, a GPU that another process holds.
namespace lockstep {

/// Facts that the driver and the device report. gpu_state() sets the members from first to last; after the first
/// problem, the later members keep their defaults. CUDA versions are numbers: 13000 means 13.0.
struct GpuState {
  /// Which processes may make contexts on the device.
  enum class Mode : unsigned char { shared, exclusive, prohibited };
  Device device{};
  int toolkit = 0;           ///< CUDA version of this build
  int driver = 0;            ///< newest CUDA version that the driver supports; 0 if there is no driver
  bool stub = false;         ///< true if libcuda is the toolkit's stub for linking, not the driver
  int devices = 0;           ///< number of devices that this process can use
  std::string name{};        ///< model: "NVIDIA H200"
  int major = 0, minor = 0;  ///< compute capability
  std::string built_for{};   ///< architectures of this build in CMake's form, with commas: "90,100-real"
  Mode mode = Mode::shared;
  std::string no_context{};         ///< name of the error that prevents a context; empty if a context exists
  std::size_t free = 0, total = 0;  ///< device memory in bytes, measured after this process made its context
};

/// Says whether memory for kernels must still be free on the GPU (`needed`), or the program already has it (`held`).
enum class GpuMemory : bool { held, needed };

/// Returns why the device cannot be used and what to do; an empty text if it can be used. The text begins with the
/// device ("cuda:0 (NVIDIA H200): ") if it is known. A driver is new enough if its major version is at least the
/// toolkit's, because minor versions are compatible. With `needed`, a thousandth of the memory must be free. Pure.
[[nodiscard]] std::string why_unusable(const GpuState& state, GpuMemory memory = GpuMemory::needed);

/// Returns true if code for one of `architectures` (GpuState::built_for) runs on a GPU of this compute capability. A
/// binary runs on GPUs of the same major version and of the same or a higher minor version. PTX runs on all GPUs of the
/// same or a higher version. "90a" runs on 9.0 alone; "100f" runs on all GPUs of major version 10. Lists that name no
/// architecture ("native", "all") give true. Pure.
[[nodiscard]] bool runs_on(std::string_view architectures, int major, int minor);

/// Returns the oldest of `architectures`: 90 for "90,100-real". Lists that name none ("native", "all") give 0. Pure.
[[nodiscard]] int oldest_architecture(std::string_view architectures);

/// Reads the state from the driver and the device, and makes the device's context for the caller's use. The thread's
/// current device does not change. Throws CudaError if the driver returns an error for which GpuState has no member,
/// DeviceError in a build without CUDA.
[[nodiscard]] GpuState gpu_state(Device device);

/// Throws DeviceError with the text of why_unusable() if the text is not empty. A CudaContext begins with this check.
void check_gpu(Device device, GpuMemory memory = GpuMemory::needed);

/// Makes a GPU the calling thread's current device (cudaSetDevice()), and makes its context. A program that computes on
/// one GPU calls this function, so that later code that uses CUDA's current device uses this GPU. Does nothing for the
/// CPU. Throws CudaError, and DeviceError in a build without CUDA.
void make_current(Device device);

/// Returns why num_gpus() is 0: no CUDA in this build, no driver, a driver that is too old, or no device. Returns an
/// empty text if there are GPUs. Makes no context.
[[nodiscard]] std::string why_no_gpus();

}  // namespace lockstep
