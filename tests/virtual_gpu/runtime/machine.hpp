#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "control.hpp"
#include "objects.hpp"

namespace lockstep::standin {

/// The machine on which the CUDA calls act. Call its functions with `mutex` locked unless they say otherwise.
class Machine {
 public:
  static Machine& instance();

  void reset(const Options& options);  ///< takes the lock itself

  /// Begins every call: counts it, makes the current device's context if CUDA makes one, and answers with an injected,
  /// sticky or driver error. A call that gives something back or waits continues after an error.
  cudaError_t enter(const char* name, bool makes_context = true);
  cudaError_t fail(cudaError_t error);  ///< sets the thread's last error
  /// Sets the last error and records a violation.
  cudaError_t violate(const std::string& text, cudaError_t error);

  /// Makes the runtime's context on a device. An error if other processes leave no room for it.
  cudaError_t make_context(int device);
  /// Gives a thread without a context the context of its device. A violation if the current context is destroyed.
  cudaError_t need_context();
  cudaError_t allocate(void** pointer, std::size_t bytes, bool pinned, int device, Pool* pool = nullptr);
  [[nodiscard]] std::size_t free_bytes(int device);
  cudaError_t release(void* pointer, bool pinned);
  void retire(const char* call, Block& block);      ///< ends the block's life, with all checks of a release
  void trim(Pool& pool, std::size_t keep);          ///< gives unused memory back, down to `keep` bytes
  [[nodiscard]] Pool* pool_of(cudaMemPool_t pool);  ///< returns nullptr unless `pool` is a living pool
  [[nodiscard]] Block* find(const void* pointer);   ///< returns the block whose mapping, guards included, holds it
  /// Checks that [pointer, pointer + bytes) is memory of the kind; violates() otherwise.
  cudaError_t check_device(const char* call, const void* pointer, std::size_t bytes, int device);
  cudaError_t check_host(const char* call, const void* pointer, std::size_t bytes, bool& pinned);
  /// Copies between checked addresses, for running work. Device memory is accessible meanwhile.
  void move(void* to, const void* from, const Rows& rows);
  void set(void* to, int value, std::size_t bytes);

  /// Runs a kernel with the device's memory accessible.
  void run_kernel(int device, const std::function<void(std::span<const DeviceMemory>)>& kernel);

  /// Runs f with the device memory that holds these addresses accessible.
  void with_memory(const std::vector<const void*>& pointers, const std::function<void()>& f);

  /// Returns the queue of a stream, or nullptr unless it is a living stream. cudaStreamLegacy means the stream of the
  /// thread's current device. A null handle is no stream here: its meaning depends on how the caller was compiled.
  Queue* queue_of(cudaStream_t stream);
  EventObject* event_of(cudaEvent_t event);
  /// Enqueues the work, or adds it to the graph that is being captured from the queue.
  cudaError_t enqueue(Queue& queue, Work work);
  /// The following functions are in graph_api.cpp. refuse_during_capture(): refuses a call that is not allowed while
  /// this thread captures, and invalidates the capture.
  cudaError_t refuse_during_capture(std::string_view name);
  cudaError_t spoil(Queue& queue, cudaError_t error);
  cudaError_t capture(Queue& queue, Work work);
  cudaError_t wait_in_capture(Queue& queue, const EventObject& event);
  void launch_graph(ExecutableObject& graph, Queue& queue);

  /// Executes queued work until done() holds. needed: the queue that a lazy machine executes for it.
  cudaError_t run_until(std::unique_lock<std::mutex>& lock, Queue* needed, const std::function<bool()>& done);
  bool step_once(Queue* needed);  ///< false when nothing can run now
  /// Starts a thread that executes queued work as soon as possible, until reset(), as a GPU does. Other processes may
  /// wait for such work while the caller does not.
  void run_by_itself();

  std::mutex mutex;
  std::condition_variable changed;
  Options options;
  std::mt19937_64 random;
  int generation = 0;
  std::map<const std::byte*, Block> blocks;  ///< blocks by the start of their mapping
  std::vector<std::size_t> used;             ///< used bytes of each device
  std::map<void*, std::unique_ptr<Queue>> queues;
  std::map<int, Queue*> legacy_queues;  ///< legacy queues by device, made at first use
  std::map<void*, std::unique_ptr<EventObject>> events;
  std::vector<std::shared_ptr<Capture>> captures;  ///< captures under way
  std::map<void*, std::unique_ptr<GraphObject>> graphs;
  std::map<void*, std::unique_ptr<ExecutableObject>> executables;
  std::map<void*, std::unique_ptr<Pool>> pools;
  std::set<int> contexts;       ///< contexts that the runtime made
  std::map<int, int> retained;  ///< number of cuDevicePrimaryCtxRetain() calls of each device
  std::map<int, Others> others;
  std::vector<int> launched_priorities;  ///< priorities of the nodes of the latest launched graph
  std::set<std::pair<int, int>> peers;   ///< (device, peer) whose access was enabled
  std::vector<std::string> log;
  std::vector<std::string> violations;
  cudaError_t driver_error = cudaSuccess;
  int driver_version = 0;
  cudaError_t sticky_error = cudaSuccess;
  std::int64_t fail_countdown = 0;
  cudaError_t fail_error = cudaSuccess;
  std::string fail_name;
  std::string failed_call;
  std::int64_t forget_countdown = 0;  ///< waits for events until one is forgotten
  std::string forget_name;
  std::thread::id forget_thread;
  bool wait_forgotten = false;
  std::int64_t work_countdown = 0;
  cudaError_t work_error = cudaSuccess;

  ~Machine();

 private:
  Machine() = default;
  bool can_run(const Queue& queue) const;
  bool is_lost(const Work& work);        ///< true if the work uses memory that was freed
  [[nodiscard]] bool may_go_on() const;  ///< true if some stream waits for something that another thread may still do
  void execute(Queue& queue);
  Queue* choose(Queue* needed);
  void host_thread();
  void stop_threads(std::unique_lock<std::mutex>& lock);
  void unmap_all();

  int next_number_ = 1;
  std::uint64_t clock_ = 0;
  std::deque<Queue*> host_queue_;  ///< queues whose front work is a host function, handed to the thread
  bool host_running_ = false;
  bool stopping_ = false;
  std::thread host_;
  std::thread engine_;  ///< thread of run_by_itself()
};

/// The contexts of a thread, each named by its device, and its last error. cudaSetDevice() replaces the current
/// context. A thread without a context gets the context of `device` with its first call that needs one.
struct ThreadState {
  int generation = -1;
  int device = 0;  ///< device that cudaSetDevice() chose
  cudaError_t last_error = cudaSuccess;
  std::vector<int> contexts{};  ///< devices of the contexts; the last context is current
  std::size_t pushed = 0;       ///< number of contexts that cuCtxPushCurrent() pushed and that are not popped
  [[nodiscard]] int current() const { return contexts.empty() ? device : contexts.back(); }
};
ThreadState& thread_state();

/// One call of the CUDA runtime, which holds the machine's lock.
struct Call {
  explicit Call(const char* name, bool makes_context = true)
      : machine(Machine::instance()), lock(machine.mutex), status(machine.enter(name, makes_context)) {}
  Machine& machine;
  std::unique_lock<std::mutex> lock;
  cudaError_t status;  ///< injected, sticky or driver error of the call
  [[nodiscard]] bool refused() const { return status != cudaSuccess; }
  /// True if a capture refuses the call: the call then gives nothing back and does not wait.
  [[nodiscard]] bool forbidden() const { return status == cudaErrorStreamCaptureUnsupported; }
};

}  // namespace lockstep::standin

/// Begins the call of this name as `call`, and returns its error if it is refused.
#define LOCKSTEP_CALL(...) \
  Call call(__VA_ARGS__);  \
  if (call.refused()) {    \
    return call.status;    \
  }                        \
  static_assert(true)
