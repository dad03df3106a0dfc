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

/// The simulated machine: the state that the stand-in's CUDA calls change. Lock `mutex` before calling its functions,
/// unless a comment says otherwise.
class Machine {
 public:
  static Machine& instance();

  void reset(const Options& options);  ///< locks the mutex itself

  /// Begins every call: counts it, creates the current device's context if CUDA would, and returns an injected, sticky
  /// or driver error. A call that releases something or waits must go on in spite of an error.
  cudaError_t enter(const char* name, bool makes_context = true);
  cudaError_t fail(cudaError_t error);  ///< sets the thread's last error
  /// Sets the thread's last error and records a violation.
  cudaError_t violate(const std::string& text, cudaError_t error);

  /// Creates the runtime's context on a device. Returns an error if other processes leave no room for it.
  cudaError_t make_context(int device);
  /// Makes the context of the thread's device current if the thread has none. Records a violation if the current
  /// context is destroyed.
  cudaError_t need_context();
  cudaError_t allocate(void** pointer, std::size_t bytes, bool pinned, int device, Pool* pool = nullptr);
  [[nodiscard]] std::size_t free_bytes(int device);
  cudaError_t release(void* pointer, bool pinned);
  void retire(const char* call, Block& block);      ///< frees the block, with all checks of a release
  void trim(Pool& pool, std::size_t keep);          ///< returns unused memory to the device, except for `keep` bytes
  [[nodiscard]] Pool* pool_of(cudaMemPool_t pool);  ///< nullptr if `pool` is no existing pool
  [[nodiscard]] Block* find(const void* pointer);   ///< returns the block at this address, guard pages included
  /// Checks that [pointer, pointer + bytes) is memory of the device, or of the host. Otherwise calls violate().
  cudaError_t check_device(const char* call, const void* pointer, std::size_t bytes, int device);
  cudaError_t check_host(const char* call, const void* pointer, std::size_t bytes, bool& pinned);
  /// Copies bytes while device memory is accessible. Called by queued work, with addresses that were checked before.
  void move(void* to, const void* from, const Rows& rows);
  void set(void* to, int value, std::size_t bytes);

  /// Runs a kernel while the device's memory is accessible.
  void run_kernel(int device, const std::function<void(std::span<const DeviceMemory>)>& kernel);

  /// Runs f while the device memory that contains these addresses is accessible.
  void with_memory(const std::vector<const void*>& pointers, const std::function<void()>& f);

  /// Returns the queue of a stream, or nullptr if the stream does not exist. cudaStreamLegacy is the default stream of
  /// the thread's current device. A null handle counts as no stream, because its meaning depends on how the caller was
  /// compiled.
  Queue* queue_of(cudaStream_t stream);
  EventObject* event_of(cudaEvent_t event);
  /// Enqueues the work. If the queue is being captured, adds the work to the graph instead.
  cudaError_t enqueue(Queue& queue, Work work);
  /// The following functions are defined in graph_api.cpp. refuse_during_capture() returns an error and invalidates the
  /// capture if this thread captures and CUDA forbids the call during a capture.
  cudaError_t refuse_during_capture(std::string_view name);
  cudaError_t spoil(Queue& queue, cudaError_t error);
  cudaError_t capture(Queue& queue, Work work);
  cudaError_t wait_in_capture(Queue& queue, const EventObject& event);
  void launch_graph(ExecutableObject& graph, Queue& queue);

  /// Executes queued work until done() is true. needed: the queue whose work done() depends on, for Style::lazy.
  cudaError_t run_until(std::unique_lock<std::mutex>& lock, Queue* needed, const std::function<bool()>& done);
  bool step_once(Queue* needed);  ///< returns false if nothing can run now
  /// Starts a thread that executes queued work as soon as possible, as a GPU does, until reset(). This is needed if
  /// other processes wait for work while the caller does not.
  void run_by_itself();

  std::mutex mutex;
  std::condition_variable changed;
  Options options;
  std::mt19937_64 random;
  int generation = 0;
  std::map<const std::byte*, Block> blocks;  ///< key: start of the mapping
  std::vector<std::size_t> used;             ///< allocated bytes of each device
  std::map<void*, std::unique_ptr<Queue>> queues;
  std::map<int, Queue*> legacy_queues;  ///< key: device; created at first use
  std::map<void*, std::unique_ptr<EventObject>> events;
  std::vector<std::shared_ptr<Capture>> captures;  ///< captures under way
  std::map<void*, std::unique_ptr<GraphObject>> graphs;
  std::map<void*, std::unique_ptr<ExecutableObject>> executables;
  std::map<void*, std::unique_ptr<Pool>> pools;
  std::set<int> contexts;       ///< devices whose context the runtime created
  std::map<int, int> retained;  ///< number of cuDevicePrimaryCtxRetain() calls for each device
  std::map<int, Others> others;
  std::vector<int> launched_priorities;  ///< node priorities of the last launched graph
  std::set<std::pair<int, int>> peers;   ///< (device, peer) pairs with enabled access
  std::vector<std::string> log;
  std::vector<std::string> violations;
  cudaError_t driver_error = cudaSuccess;
  int driver_version = 0;
  cudaError_t sticky_error = cudaSuccess;
  std::int64_t fail_countdown = 0;
  cudaError_t fail_error = cudaSuccess;
  std::string fail_name;
  std::string failed_call;
  std::int64_t forget_countdown = 0;  ///< number of event waits until one is skipped; 0: none is skipped
  std::string forget_name;
  std::thread::id forget_thread;
  bool wait_forgotten = false;
  std::int64_t work_countdown = 0;
  cudaError_t work_error = cudaSuccess;

  ~Machine();

 private:
  Machine() = default;
  bool can_run(const Queue& queue) const;
  bool is_lost(const Work& work);        ///< true if the work uses freed memory
  [[nodiscard]] bool may_go_on() const;  ///< true if some stream waits for an action of another thread or process
  void execute(Queue& queue);
  Queue* choose(Queue* needed);
  void host_thread();
  void stop_threads(std::unique_lock<std::mutex>& lock);
  void unmap_all();

  int next_number_ = 1;
  std::uint64_t clock_ = 0;
  std::deque<Queue*> host_queue_;  ///< queues whose first work is a host function that is ready to run
  bool host_running_ = false;
  bool stopping_ = false;
  std::thread host_;
  std::thread engine_;  ///< thread of run_by_itself()
};

/// A thread's contexts, each identified by its device, and its last error. cudaSetDevice() replaces the current
/// context. If a thread has no context, its first call that needs one gets the context of `device`.
struct ThreadState {
  int generation = -1;
  int device = 0;  ///< device that cudaSetDevice() set
  cudaError_t last_error = cudaSuccess;
  std::vector<int> contexts{};  ///< device of each context; the last context is current
  std::size_t pushed = 0;       ///< number of contexts pushed by cuCtxPushCurrent() and not popped
  [[nodiscard]] int current() const { return contexts.empty() ? device : contexts.back(); }
};
ThreadState& thread_state();

/// One call of the CUDA runtime. It holds the machine's lock.
struct Call {
  explicit Call(const char* name, bool makes_context = true)
      : machine(Machine::instance()), lock(machine.mutex), status(machine.enter(name, makes_context)) {}
  Machine& machine;
  std::unique_lock<std::mutex> lock;
  cudaError_t status;  ///< injected, sticky or driver error of the call
  [[nodiscard]] bool refused() const { return status != cudaSuccess; }
  /// Returns true if the call is refused because the thread captures. The call must then neither release anything nor
  /// wait.
  [[nodiscard]] bool forbidden() const { return status == cudaErrorStreamCaptureUnsupported; }
};

}  // namespace lockstep::standin

/// Declares the variable `call`, which begins a CUDA call of this name. If the call is refused, makes the enclosing
/// function return the call's error.
#define LOCKSTEP_CALL(...) \
  Call call(__VA_ARGS__);  \
  if (call.refused()) {    \
    return call.status;    \
  }                        \
  static_assert(true)
