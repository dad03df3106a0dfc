#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <cuda_runtime_api.h>

/// A stand-in for the CUDA runtime, without a GPU. This library implements the functions of the real headers that
/// runtime/ calls. Work on a stream is queued and executed later, in an order that CUDA allows and that the seed
/// chooses. So a missing event wait gives a wrong result for some seed. Device memory is accessible by copies only;
/// direct access by the host raises SIGSEGV. Uses that CUDA leaves undefined (use after free, freeing memory that
/// queued work uses, a copy out of range) are recorded as violations. The functions of this header control and inspect
/// the stand-in.
namespace lockstep::standin {

struct Options {
  int devices = 1;
  std::size_t bytes_per_device = std::size_t{1} << 30;  ///< capacity of cudaMalloc on each device, in bytes
  std::uint64_t seed = 0;
  bool peer_access = true;   ///< result of cudaDeviceCanAccessPeer() for two different devices
  bool pools = true;         ///< whether devices have memory pools
  int capability = 90;       ///< compute capability, times ten
  bool memory_waits = true;  ///< whether streams can wait for a value in memory (cuStreamWaitValue64)
};

/// The order in which queued work is executed. The seed determines the style and all random choices.
enum class Style : unsigned char {
  lazy,      ///< only work for which a caller waits, as late as possible
  eager,     ///< all work at once, as on a GPU that is faster than the host
  uniform,   ///< any stream that can run, with equal probability
  priority,  ///< one favoured stream as long as it can run; the favourite changes at random
};
[[nodiscard]] Style style_of(std::uint64_t seed);

/// Makes a new machine without memory, streams, events, violations and counts. Resets every thread's current device to
/// 0 and its last error to success. Call reset() between tests, while no other thread is in a CUDA call.
void reset(const Options& options = {});

/// Makes every later call return `error`, by default as on a machine without a driver. version: result of
/// cudaDriverGetVersion(); 0: no driver.
void break_driver(cudaError_t error = cudaErrorInsufficientDriver, int version = 0);

/// How other processes use a device.
struct Others {
  std::size_t bytes = 0;  ///< device memory of the other processes, in bytes
  bool running = false;   ///< true if another process has a context on the device
  cudaComputeMode mode = cudaComputeModeDefault;
};
void occupy(int device, const Others& others);

/// Makes the n-th call from now return `error` (n = 1: the next call). The failed call does nothing, except that
/// functions that release something or wait still do so. name: counts only calls of this function; empty: counts all
/// calls that can fail.
void fail_call(std::int64_t n, cudaError_t error, std::string_view name = {});
[[nodiscard]] std::string failed_call();  ///< function whose call fail_call() made fail; empty: none so far
/// Makes the calling thread's n-th cudaStreamWaitEvent() or cudaEventSynchronize() from now return success and do
/// nothing, as if lockstep had forgotten the wait. name: counts only calls of this function.
void forget_wait(std::int64_t n, std::string_view name = {});
[[nodiscard]] bool wait_forgotten();  ///< true once forget_wait()'s n-th wait was skipped
/// Makes the n-th piece of work that is executed from now fail. Every later call returns `error`, as after an illegal
/// address in a kernel.
void fail_work(std::int64_t n, cudaError_t error);

[[nodiscard]] std::int64_t calls(std::string_view name = {});  ///< calls of `name` (empty: of all) since reset()
[[nodiscard]] std::vector<std::string> call_log();             ///< names of all calls in order
[[nodiscard]] std::vector<std::string> violations();           ///< recorded uses that CUDA leaves undefined
void violate(const std::string& text);                         ///< records a violation
[[nodiscard]] std::vector<std::string> leaks();   ///< memory, pools, streams, events and contexts not released
[[nodiscard]] std::vector<int> devices_in_use();  ///< devices on which a primary context exists
/// Returns the priorities of the nodes of the last launched graph, in the order of their capture. Priorities are 0 to
/// -5; -5 is the most urgent.
[[nodiscard]] std::vector<int> launched_priorities();
[[nodiscard]] cudaError_t last_error();   ///< error that cudaGetLastError() would return; is not cleared
[[nodiscard]] std::size_t queued_work();  ///< number of pieces of work not yet executed

/// A block of device memory.
struct DeviceMemory {
  std::byte* data;
  std::size_t bytes;
};
/// Queues a kernel on a stream of the current device. `run` is called in stream order while device memory is
/// accessible, with the allocated blocks of device memory. If it throws a std::exception, a violation is recorded, and
/// every later call returns cudaErrorLaunchFailure, as after a failed kernel. Counts as a call of cudaLaunchKernel.
cudaError_t launch(cudaStream_t stream, std::function<void(std::span<const DeviceMemory>)> run);
[[nodiscard]] bool is_device_memory(const void* pointer);  ///< true if the address is inside an allocated block

/// Executes up to n pieces of work that can run. Returns how many were executed.
std::size_t step(std::size_t n);

}  // namespace lockstep::standin
