#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <lockstep/runtime/machine/device.hpp>

/// Says in a text whether a GPU can be used: what is missing, on which device, and what to do about it. A missing
/// driver, a driver that is too old and a GPU that another process holds are not errors of the program.
namespace lockstep {

/// Facts that driver and device report, asked in the order of the members. After the first problem the other members
/// keep their defaults. CUDA versions are numbers: 13000 is 13.0.
struct GpuState {
  enum class Mode : unsigned char { shared, exclusive, prohibited };  ///< who may make contexts on the device
  Device device{};
  int toolkit = 0;           ///< CUDA version of this build
  int driver = 0;            ///< newest CUDA version that the driver knows; 0: there is no driver
  bool stub = false;         ///< the library found is the toolkit's stub for linking, not the driver
  int devices = 0;           ///< number of devices that this process can use
  std::string name{};        ///< "NVIDIA H200"
  int major = 0, minor = 0;  ///< compute capability
  std::string built_for{};   ///< architectures of this build, as for CMake, with commas: "90,100-real"
  Mode mode = Mode::shared;
  std::string no_context{};         ///< name of the error that prevents a context; empty: a context exists
  std::size_t free = 0, total = 0;  ///< bytes, with our context on it
};

/// Whether memory for kernels must still be free on the GPU (needed), or the program already holds it (held).
enum class GpuMemory : bool { held, needed };

/// Returns why the device cannot be used and what to do about it; empty when it can be used. The text begins with the
/// device ("cuda:0 (NVIDIA H200): ") if it is known. A driver is new enough when its major version is the toolkit's
/// (minor versions are compatible). With `needed`, a thousandth of the memory must be free. Pure.
[[nodiscard]] std::string why_unusable(const GpuState& state, GpuMemory memory = GpuMemory::needed);

/// True when code for one of `architectures` (GpuState::built_for) runs on a GPU of this compute capability. Binaries
/// run on their major version, from their minor version on. PTX runs on all GPUs from its version on. "90a" runs on no
/// newer GPU; "100f" runs on the later members of its family (the same major version). True for lists that name no
/// architecture ("native", "all"). Pure.
[[nodiscard]] bool runs_on(std::string_view architectures, int major, int minor);

/// Returns the oldest of `architectures`: 90 for "90,100-real"; 0 for lists that name none ("native", "all"). Pure.
[[nodiscard]] int oldest_architecture(std::string_view architectures);

/// Asks driver and device, and makes the device's context, which the caller is about to use. The thread's current
/// device does not change. CudaError when the driver returns an error for which GpuState has no member; DeviceError in
/// a build without CUDA.
[[nodiscard]] GpuState gpu_state(Device device);

/// Throws DeviceError with the text of why_unusable(), if there is one. A CudaContext begins with this check.
void check_gpu(Device device, GpuMemory memory = GpuMemory::needed);

/// Makes a GPU the calling thread's current device (cudaSetDevice()), and makes its context. For programs that compute
/// on one GPU: code that asks for the current device later gets this GPU. Does nothing for the host. CudaError;
/// DeviceError in a build without CUDA.
void make_current(Device device);

/// Returns why num_gpus() is 0, for people: no CUDA in this build, no driver, a driver that is too old, or no device.
/// Empty when there are GPUs. Makes no context.
[[nodiscard]] std::string why_no_gpus();

}  // namespace lockstep
