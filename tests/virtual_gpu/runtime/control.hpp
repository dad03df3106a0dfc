#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <cuda_runtime_api.h>

/// A stand-in for the CUDA runtime calls that runtime/ makes: the real headers with symbols of this library, without a
/// GPU. Work on a stream is queued and executed later, in an order that CUDA allows and the seed chooses. A missing
/// event wait thus gives a wrong result for some seed. Device memory can be reached through copies only; direct access
/// by the host ends in SIGSEGV. Uses that CUDA would leave undefined (use after free, freeing memory that queued work
/// uses, a copy out of range) are recorded as violations. The functions of this header set the stand-in up and inspect
/// it.
namespace lockstep::standin {

struct Options {
  int devices = 1;
  std::size_t bytes_per_device = std::size_t{1} << 30;  ///< bytes that cudaMalloc can give out on each device
  std::uint64_t seed = 0;
  bool peer_access = true;   ///< answer of cudaDeviceCanAccessPeer() for two devices
  bool pools = true;         ///< whether devices have memory pools
  int capability = 90;       ///< compute capability, times ten
  bool memory_waits = true;  ///< whether streams can wait for memory (cuStreamWaitValue64)
};

/// The order in which queued work is executed; the seed chooses one.
enum class Style : unsigned char {
  lazy,      ///< only the work that a waiting caller needs, as late as possible
  eager,     ///< at once, as on a GPU that is faster than the host
  uniform,   ///< any stream that can run, with equal odds
  priority,  ///< one favoured stream as far as it can go; the favourite changes at random
};
[[nodiscard]] Style style_of(std::uint64_t seed);

/// Makes a new machine without memory, streams, events, violations and counts. Every thread's current device is 0 again
/// and its last error is cleared. Call reset() between tests, while no other thread is in a CUDA call.
void reset(const Options& options = {});

/// Makes every call from now on answer as on a machine without a driver (cudaErrorInsufficientDriver), or with another
/// error. version: answer of cudaDriverGetVersion(); 0: no driver.
void break_driver(cudaError_t error = cudaErrorInsufficientDriver, int version = 0);

/// The use of a device by other processes.
struct Others {
  std::size_t bytes = 0;  ///< device memory that they hold
  bool running = false;   ///< another process has a context there
  cudaComputeMode mode = cudaComputeModeDefault;
};
void occupy(int device, const Others& others);

/// Makes the n-th call from now (1 is the next) answer with `error` and do nothing; a call that gives something back or
/// waits still does so. name: counts only calls of this function; empty: all calls that can fail.
void fail_call(std::int64_t n, cudaError_t error, std::string_view name = {});
[[nodiscard]] std::string failed_call();  ///< function that fail_call() made fail; empty: none yet
/// Makes the n-th cudaStreamWaitEvent() or cudaEventSynchronize() of the calling thread from now answer with success
/// and do nothing, as if the library had left the wait out. name: counts only calls of this function.
void forget_wait(std::int64_t n, std::string_view name = {});
[[nodiscard]] bool wait_forgotten();  ///< true if the n-th wait since the last forget_wait() has come
/// Makes the n-th piece of queued work executed from now fail. Every later call on the machine answers with `error`, as
/// after an illegal address in a kernel.
void fail_work(std::int64_t n, cudaError_t error);

[[nodiscard]] std::int64_t calls(std::string_view name = {});  ///< calls of one function or of all since reset()
[[nodiscard]] std::vector<std::string> call_log();             ///< names of all calls, in order
[[nodiscard]] std::vector<std::string> violations();           ///< uses that CUDA leaves undefined
void violate(const std::string& text);                         ///< records a violation
[[nodiscard]] std::vector<std::string> leaks();                ///< memory, pools, streams, events and contexts kept
[[nodiscard]] std::vector<int> devices_in_use();               ///< devices whose primary context exists
/// Returns the priorities of the nodes of the graph that was launched last, in the order of their capture: 0 to -5; -5
/// is the most urgent.
[[nodiscard]] std::vector<int> launched_priorities();
[[nodiscard]] cudaError_t last_error();   ///< error that cudaGetLastError() would return; stays set
[[nodiscard]] std::size_t queued_work();  ///< pieces of work not executed yet

/// A block of device memory.
struct DeviceMemory {
  std::byte* data;
  std::size_t bytes;
};
/// Queues a kernel on a stream of the current device. `run` is called in stream order, with the device's memory
/// accessible, and gets the blocks that are in use. A std::exception that it throws is recorded as a violation; every
/// later call then answers with cudaErrorLaunchFailure, as after a failed kernel. Counts as a call of cudaLaunchKernel.
cudaError_t launch(cudaStream_t stream, std::function<void(std::span<const DeviceMemory>)> run);
[[nodiscard]] bool is_device_memory(const void* pointer);  ///< true for an address inside a block that is in use

/// Executes up to n pieces of work that can run. Returns how many were executed.
std::size_t step(std::size_t n);

}  // namespace lockstep::standin
