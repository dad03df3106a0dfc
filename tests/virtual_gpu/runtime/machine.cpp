#include "machine.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <sstream>
#include <utility>

namespace lockstep::standin {
namespace {

constexpr std::size_t kAlignment = 256;  // alignment of cudaMalloc
constexpr std::byte kCanary{0xC5};       // bytes between the end of a block and its guard page

std::size_t page() {
  static const auto size = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

std::size_t round_up(std::size_t value, std::size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// How long a caller waits for other threads and processes. After this time the wait is reported as endless.
constexpr std::chrono::seconds kPatience{30};
/// How often a waiting thread checks for changes by other processes, which cannot notify it.
constexpr std::chrono::milliseconds kPause{1};

bool is_given_up(const Work& work) {
  return work.given_up != nullptr && *work.given_up;
}

/// Returns a queue that takes part in the meeting but has not arrived at it, or never will, because its work was given
/// up. Returns nullptr if all of meeting.queues have arrived.
Queue* absent(const Meeting& meeting) {
  for (Queue* queue : meeting.queues) {
    if (queue->work.empty() || is_given_up(queue->work.front())) {
      return queue;
    }
    const auto& front = queue->work.front().meetings;
    if (std::none_of(front.begin(), front.end(), [&](const auto& m) { return m.get() == &meeting; })) {
      return queue;
    }
  }
  return nullptr;
}

bool can_start(const Meeting& meeting) {
  return meeting.done || (meeting.queues.size() == meeting.size && absent(meeting) == nullptr &&
                          (!meeting.elsewhere || meeting.elsewhere()));
}

bool is_ready(const Work& work) {
  return !work.ready || work.ready();
}

/// Returns the first meeting of this work that cannot start yet, or nullptr.
const Meeting* waits_for(const Work& work) {
  if (is_given_up(work)) {
    return nullptr;
  }
  const auto found =
      std::find_if(work.meetings.begin(), work.meetings.end(), [](const auto& m) { return !can_start(*m); });
  return found == work.meetings.end() ? nullptr : found->get();
}

bool overlap(const Range& range, const Block& block) {
  return range.begin < block.data + block.bytes && block.data < range.begin + range.bytes;
}

template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

}  // namespace

Style style_of(std::uint64_t seed) {
  return static_cast<Style>(seed % 4);
}

ThreadState& thread_state() {
  thread_local ThreadState state;
  const int now = Machine::instance().generation;
  if (state.generation != now) {
    state = {};
    state.generation = now;
  }
  return state;
}

Machine& Machine::instance() {
  static Machine machine;
  return machine;
}

Machine::~Machine() {
  std::unique_lock lock(mutex);
  stop_threads(lock);
  unmap_all();
}

void Machine::reset(const Options& wanted) {
  std::unique_lock lock(mutex);
  stop_threads(lock);
  unmap_all();
  options = wanted;
  random.seed(wanted.seed);
  ++generation;
  used.assign(static_cast<std::size_t>(wanted.devices), 0);
  queues.clear();
  legacy_queues.clear();
  events.clear();
  captures.clear();
  graphs.clear();
  executables.clear();
  pools.clear();
  contexts.clear();
  retained.clear();
  others.clear();
  peers.clear();
  launched_priorities.clear();
  log.clear();
  violations.clear();
  driver_error = wanted.devices == 0 ? cudaErrorNoDevice : cudaSuccess;
  driver_version = CUDART_VERSION;
  sticky_error = cudaSuccess;
  fail_countdown = work_countdown = forget_countdown = 0;
  failed_call.clear();
  next_number_ = 1;
  clock_ = 0;
}

void Machine::unmap_all() {
  for (auto& [start, block] : blocks) {
    munmap(block.map, block.map_bytes);
  }
  blocks.clear();
}

cudaError_t Machine::fail(cudaError_t error) {
  thread_state().last_error = error;
  return error;
}

cudaError_t Machine::violate(const std::string& what, cudaError_t error) {
  violations.push_back(what);
  return fail(error);
}

cudaError_t Machine::enter(const char* name, bool makes_context) {
  log.emplace_back(name);
  if (driver_error != cudaSuccess) {
    return fail(driver_error);
  }
  if (fail_countdown > 0 && (fail_name.empty() || fail_name == name) && --fail_countdown == 0) {
    failed_call = name;
    return fail(fail_error);
  }
  if (makes_context) {
    if (const cudaError_t status = need_context(); status != cudaSuccess) {
      return status;
    }
  }
  if (const cudaError_t refused = refuse_during_capture(name); refused != cudaSuccess) {
    return refused;
  }
  return sticky_error != cudaSuccess ? fail(sticky_error) : cudaSuccess;
}

cudaError_t Machine::make_context(int device) {
  if (!contexts.contains(device) && !retained.contains(device)) {
    const Others& there = others[device];
    if (there.mode == cudaComputeModeProhibited || (there.mode == cudaComputeModeExclusiveProcess && there.running)) {
      return fail(cudaErrorDevicesUnavailable);
    }
    if (there.bytes >= options.bytes_per_device) {
      return fail(cudaErrorMemoryAllocation);
    }
  }
  contexts.insert(device);
  return cudaSuccess;
}

cudaError_t Machine::need_context() {
  ThreadState& thread = thread_state();
  const int device = thread.current();
  if (thread.contexts.empty()) {
    const cudaError_t status = make_context(device);
    if (status == cudaSuccess) {
      thread.contexts.push_back(device);
    }
    return status;
  }
  return contexts.contains(device) || retained.contains(device)
             ? cudaSuccess
             : violate(text("the context of device ", device, " is current and no longer there"),
                       cudaErrorContextIsDestroyed);
}

std::size_t Machine::free_bytes(int device) {
  const std::size_t taken = used[static_cast<std::size_t>(device)] + others[device].bytes;
  return options.bytes_per_device - std::min(taken, options.bytes_per_device);
}

cudaError_t Machine::allocate(void** pointer, std::size_t bytes, bool pinned, int device, Pool* pool) {
  std::size_t& in_use = used[static_cast<std::size_t>(device)];
  if (bytes == 0) {
    *pointer = nullptr;
    return cudaSuccess;
  }
  const std::size_t cached = pool != nullptr ? pool->reserved - pool->used : 0;
  const std::size_t more = bytes - std::min(bytes, cached);
  if (!pinned && more > free_bytes(device)) {
    return fail(cudaErrorMemoryAllocation);
  }
  // The layout is [guard page | padding, then data | canaries | guard page]. The data ends as close to the upper guard
  // page as its alignment allows.
  const std::size_t body = round_up(bytes, page());
  const std::size_t total = body + 2 * page();
  void* map = mmap(nullptr, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) {
    return fail(cudaErrorMemoryAllocation);
  }
  Block block;
  block.map = static_cast<std::byte*>(map);
  block.map_bytes = total;
  block.data = block.map + page() + (body - round_up(bytes, kAlignment));
  block.bytes = bytes;
  block.device = device;
  block.pinned = pinned;
  mprotect(block.map + page(), body, PROT_READ | PROT_WRITE);
  // New memory holds NaN for odd seeds and other bytes for even seeds. In large blocks only the two ends are filled.
  constexpr std::size_t kPoison = std::size_t{1} << 20;
  const int poison = options.seed % 2 == 1 ? 0xFF : 0xA7;
  std::memset(block.data, poison, std::min(bytes, kPoison));
  if (bytes > kPoison) {
    std::memset(block.data + bytes - kPoison, poison, kPoison);
  }
  for (std::byte* p = block.data + bytes; p != block.map + total - page(); ++p) {
    *p = kCanary;
  }
  if (!pinned) {
    mprotect(block.map + page(), body, PROT_NONE);
    in_use += more;
  }
  if (pool != nullptr) {
    block.pool = pool;
    pool->reserved += more;
    pool->used += bytes;
  }
  *pointer = block.data;
  blocks.emplace(block.map, block);
  return cudaSuccess;
}

Block* Machine::find(const void* pointer) {
  const auto* address = static_cast<const std::byte*>(pointer);
  auto next = blocks.upper_bound(address);
  if (next == blocks.begin()) {
    return nullptr;
  }
  Block& block = std::prev(next)->second;
  return address < block.map + block.map_bytes ? &block : nullptr;
}

cudaError_t Machine::release(void* pointer, bool pinned) {
  const char* call = pinned ? "cudaFreeHost" : "cudaFree";
  if (pointer == nullptr) {
    return cudaSuccess;
  }
  Block* block = find(pointer);
  if (block == nullptr || block->data != pointer || block->pinned != pinned) {
    return violate(text(call, ": ", pointer, " was not given out by ", pinned ? "cudaMallocHost" : "cudaMalloc"),
                   cudaErrorInvalidValue);
  }
  if (block->freed || block->free_queued) {
    return violate(text(call, ": ", pointer, " was freed before"), cudaErrorInvalidValue);
  }
  retire(call, *block);
  return cudaSuccess;
}

void Machine::trim(Pool& pool, std::size_t keep) {
  const std::size_t rest = std::min(pool.reserved, std::max(pool.used, keep));
  used[static_cast<std::size_t>(pool.device)] -= pool.reserved - rest;
  pool.reserved = rest;
}

Pool* Machine::pool_of(cudaMemPool_t pool) {
  const auto found = pools.find(pool);
  return found != pools.end() && !found->second->destroyed ? found->second.get() : nullptr;
}

void Machine::retire(const char* call, Block& retired) {
  Block* block = &retired;
  const void* pointer = block->data;
  for (const auto& [handle, queue] : queues) {
    for (const Work& work : queue->work) {
      if (std::any_of(work.uses.begin(), work.uses.end(), [&](const Range& range) { return overlap(range, *block); })) {
        violations.push_back(
            text(call, ": ", pointer, " is used by a ", work.name, " queued on stream ", queue->number));
      }
    }
  }
  const std::size_t body = block->map_bytes - 2 * page();
  mprotect(block->map + page(), body, PROT_READ | PROT_WRITE);
  for (std::byte* p = block->data + block->bytes; p != block->map + page() + body; ++p) {
    if (*p != kCanary) {
      violations.push_back(text(call, ": something was written past the end of ", pointer));
      break;
    }
  }
  mprotect(block->map + page(), body, PROT_NONE);
  madvise(block->map + page(), body, MADV_DONTNEED);
  block->freed = true;
  if (block->pool != nullptr) {
    block->pool->used -= block->bytes;
    if (block->pool->destroyed) {
      trim(*block->pool, 0);
    }
  } else if (!block->pinned) {
    used[static_cast<std::size_t>(block->device)] -= block->bytes;
  }
}

cudaError_t Machine::check_device(const char* call, const void* pointer, std::size_t bytes, int device) {
  const Block* block = find(pointer);
  const auto* begin = static_cast<const std::byte*>(pointer);
  if (block == nullptr || block->pinned) {
    return violate(text(call, ": ", pointer, " is not device memory"), cudaErrorInvalidValue);
  }
  if (block->freed || block->free_queued) {
    return violate(text(call, ": ", pointer, " is device memory that was freed"), cudaErrorInvalidValue);
  }
  if (begin < block->data || begin + bytes > block->data + block->bytes) {
    return violate(text(call, ": ", bytes, " bytes at ", pointer, " leave their block of ", block->bytes, " bytes at ",
                        static_cast<const void*>(block->data)),
                   cudaErrorInvalidValue);
  }
  if (block->device != device) {
    return violate(text(call, ": ", pointer, " is memory of device ", block->device, ", expected device ", device),
                   cudaErrorInvalidValue);
  }
  return cudaSuccess;
}

cudaError_t Machine::check_host(const char* call, const void* pointer, std::size_t bytes, bool& pinned) {
  const Block* block = find(pointer);
  pinned = block != nullptr;
  if (block == nullptr) {
    return cudaSuccess;
  }
  const auto* begin = static_cast<const std::byte*>(pointer);
  if (!block->pinned) {
    return violate(text(call, ": ", pointer, " is device memory, expected host memory"), cudaErrorInvalidValue);
  }
  if (block->freed || begin < block->data || begin + bytes > block->data + block->bytes) {
    return violate(text(call, ": ", bytes, " bytes at ", pointer, " are not in a living block of pinned memory"),
                   cudaErrorInvalidValue);
  }
  return cudaSuccess;
}

namespace {

/// Makes the device memory that contains an address accessible for the lifetime of this object.
class Unlock {
 public:
  explicit Unlock(const Block* block) : block_(block != nullptr && !block->pinned ? block : nullptr) {
    protect(PROT_READ | PROT_WRITE);
  }
  Unlock(const Unlock&) = delete;
  Unlock& operator=(const Unlock&) = delete;
  ~Unlock() { protect(PROT_NONE); }

 private:
  void protect(int protection) const {
    if (block_ != nullptr) {
      mprotect(block_->map + page(), block_->map_bytes - 2 * page(), protection);
    }
  }
  const Block* block_;
};

}  // namespace

void Machine::move(void* to, const void* from, const Rows& rows) {
  const Unlock target(find(to));
  const Unlock source(find(from) == find(to) ? nullptr : find(from));
  for (std::size_t slice = 0; slice < rows.depth; ++slice) {
    for (std::size_t row = 0; row < rows.height; ++row) {
      std::memmove(static_cast<std::byte*>(to) + slice * rows.dst_slice + row * rows.dst_pitch,
                   static_cast<const std::byte*>(from) + slice * rows.src_slice + row * rows.src_pitch, rows.width);
    }
  }
}

void Machine::set(void* to, int value, std::size_t bytes) {
  const Unlock target(find(to));
  std::memset(to, value, bytes);
}

void Machine::run_kernel(int device, const std::function<void(std::span<const DeviceMemory>)>& kernel) {
  std::vector<std::unique_ptr<Unlock>> unlocked;
  std::vector<DeviceMemory> memory;
  for (const auto& [start, block] : blocks) {
    if (!block.freed && !block.pinned && block.device == device) {
      unlocked.push_back(std::make_unique<Unlock>(&block));
      memory.push_back({block.data, block.bytes});
    }
  }
  try {
    kernel(memory);
  } catch (const std::exception& error) {
    violations.emplace_back(error.what());
    sticky_error = cudaErrorLaunchFailure;
  }
}

void Machine::with_memory(const std::vector<const void*>& pointers, const std::function<void()>& f) {
  std::set<const Block*> held;
  std::vector<std::unique_ptr<Unlock>> unlocked;
  for (const void* pointer : pointers) {
    const Block* block = find(pointer);
    if (block != nullptr && held.insert(block).second) {
      unlocked.push_back(std::make_unique<Unlock>(block));
    }
  }
  f();
}

Queue* Machine::queue_of(cudaStream_t stream) {
  if (stream == cudaStreamLegacy) {
    Queue*& legacy = legacy_queues[thread_state().current()];
    if (legacy == nullptr) {
      auto queue = std::make_unique<Queue>();
      queue->device = thread_state().current();
      queue->number = static_cast<int>(queues.size()) + 1;
      queue->legacy = true;
      legacy = queue.get();
      queues.emplace(legacy, std::move(queue));
    }
    return legacy;
  }
  const auto found = queues.find(stream);
  return found != queues.end() && found->second->alive ? found->second.get() : nullptr;
}

EventObject* Machine::event_of(cudaEvent_t event) {
  const auto found = events.find(event);
  return found != events.end() ? found->second.get() : nullptr;
}

cudaError_t Machine::enqueue(Queue& queue, Work work) {
  if (queue.capture != nullptr) {
    return capture(queue, std::move(work));
  }
  if (work.completes != nullptr) {
    work.completes->queue = &queue;
  }
  for (const auto& meeting : work.meetings) {
    meeting->queues.push_back(&queue);
  }
  queue.work.push_back(std::move(work));
  changed.notify_all();  // wakes threads that may wait for this work
  if (style_of(options.seed) == Style::eager) {
    while (step_once(nullptr)) {
    }
  } else if (style_of(options.seed) == Style::priority && random() % 4 == 0) {
    step_once(nullptr);
  }
  return cudaSuccess;
}

bool Machine::can_run(const Queue& queue) const {
  return !queue.busy && !queue.work.empty() &&
         (queue.work.front().awaits == nullptr || queue.work.front().awaits->done) && is_ready(queue.work.front()) &&
         waits_for(queue.work.front()) == nullptr;
}

bool Machine::may_go_on() const {
  return std::any_of(queues.begin(), queues.end(), [](const auto& entry) {
    const Queue& queue = *entry.second;
    return !queue.work.empty() && (waits_for(queue.work.front()) != nullptr || queue.work.front().ready);
  });
}

Queue* Machine::choose(Queue* needed) {
  std::vector<Queue*> ready;
  for (const auto& [handle, queue] : queues) {
    if (can_run(*queue)) {
      ready.push_back(queue.get());
    }
  }
  if (ready.empty()) {
    return nullptr;
  }
  // The map is sorted by address, which differs from run to run. Sorting by number makes the choice depend only on the
  // seed.
  std::sort(ready.begin(), ready.end(), [](const Queue* a, const Queue* b) { return a->number < b->number; });
  const Style style = style_of(options.seed);
  if (style == Style::lazy && needed != nullptr) {
    constexpr int kMostTurns = 10000;
    int turns = 0;
    while (!can_run(*needed)) {
      const bool waits = !needed->busy && !needed->work.empty();
      if (!waits) {
        return nullptr;  // a host function of this queue is running
      }
      const Work& front = needed->work.front();
      if (!is_ready(front)) {
        return nullptr;  // the host has not yet written the value that the work waits for
      }
      needed = front.awaits != nullptr ? front.awaits->queue : absent(*waits_for(front));
      if (needed == nullptr || ++turns > kMostTurns) {
        return nullptr;  // another thread has not enqueued its part, or streams wait for each other in a cycle
      }
    }
    return needed;
  }
  if (style == Style::priority) {
    if (random() % 8 == 0) {
      for (Queue* queue : ready) {
        queue->turn = static_cast<int>(random() % 1000);
      }
    }
    return *std::max_element(ready.begin(), ready.end(),
                             [](const Queue* a, const Queue* b) { return a->turn < b->turn; });
  }
  return ready[random() % ready.size()];
}

bool Machine::step_once(Queue* needed) {
  Queue* queue = choose(needed);
  if (queue == nullptr) {
    return false;
  }
  execute(*queue);
  return true;
}

bool Machine::is_lost(const Work& work) {
  const auto lost = std::find_if(work.uses.begin(), work.uses.end(), [&](const Range& range) {
    const Block* block = find(range.begin);
    return block != nullptr && block->freed;
  });
  if (lost == work.uses.end()) {
    return false;
  }
  violations.push_back(
      text(work.name, ": executed on memory that was freed, at ", static_cast<const void*>(lost->begin)));
  sticky_error = cudaErrorIllegalAddress;
  return true;
}

void Machine::execute(Queue& queue) {
  Work& work = queue.work.front();
  ++clock_;
  if (work_countdown > 0 && --work_countdown == 0) {
    sticky_error = work_error;
  }
  if (work.function != nullptr) {
    queue.busy = true;
    host_queue_.push_back(&queue);
    if (!host_.joinable()) {
      host_ = std::thread([this] { host_thread(); });
    }
    changed.notify_all();
    return;
  }
  const bool given_up = is_given_up(work);
  if (work.run && !given_up && !is_lost(work)) {
    if (std::any_of(work.uses.begin(), work.uses.end(), [&](const Range& range) {
          const Block* block = find(range.begin);
          return block != nullptr && block->given != nullptr && !block->given->done;
        })) {
      violations.push_back(text(work.name, ": executed before the allocation of its memory, on another stream"));
    }
    work.run();
  }
  for (const auto& meeting : work.meetings) {
    if (given_up || meeting->done) {
      continue;
    }
    bool lost = false;
    for (const Queue* other : meeting->queues) {
      lost = is_lost(other->work.front()) || lost;
    }
    if (!lost) {
      meeting->run();
    }
    meeting->done = true;
  }
  if (work.completes != nullptr) {
    work.completes->done = true;
    work.completes->time = clock_;
  }
  queue.work.pop_front();
  changed.notify_all();
}

// Runs the host functions of all streams on one thread, one after another, as CUDA may do.
void Machine::host_thread() {
  std::unique_lock lock(mutex);
  while (true) {
    changed.wait(lock, [&] { return stopping_ || !host_queue_.empty(); });
    if (host_queue_.empty()) {
      return;
    }
    Queue& queue = *host_queue_.front();
    host_queue_.pop_front();
    const Work& work = queue.work.front();
    host_running_ = true;
    lock.unlock();
    work.function(work.data);
    lock.lock();
    host_running_ = false;
    queue.busy = false;
    queue.work.pop_front();
    if (style_of(options.seed) == Style::eager) {
      while (step_once(nullptr)) {
      }
    }
    changed.notify_all();
  }
}

void Machine::stop_threads(std::unique_lock<std::mutex>& lock) {
  stopping_ = true;
  changed.notify_all();
  for (std::thread* thread : {&engine_, &host_}) {
    if (thread->joinable()) {
      lock.unlock();
      thread->join();
      lock.lock();
    }
  }
  stopping_ = false;
}

void Machine::run_by_itself() {
  if (!engine_.joinable()) {
    engine_ = std::thread([this] {
      std::unique_lock lock(mutex);
      while (!stopping_) {
        if (!step_once(nullptr)) {
          changed.wait_for(lock, kPause);
        }
      }
    });
  }
}

cudaError_t Machine::run_until(std::unique_lock<std::mutex>& lock, Queue* needed, const std::function<bool()>& done) {
  using Clock = std::chrono::steady_clock;
  Clock::time_point deadline = Clock::now() + kPatience;
  while (!done()) {
    if (step_once(needed)) {
      deadline = Clock::now() + kPatience;
      continue;
    }
    // No queued work can run. Only a host function (on its own thread), or another thread or process whose streams take
    // part in a meeting, can end the wait now.
    if (!host_running_ && host_queue_.empty()) {
      if (!may_go_on() || Clock::now() > deadline) {
        return violate("a wait that nothing queued can end", cudaErrorLaunchFailure);
      }
      if (changed.wait_for(lock, kPause) == std::cv_status::no_timeout) {
        deadline = Clock::now() + kPatience;
      }
      continue;
    }
    changed.wait(lock);
  }
  for (auto& [handle, pool] : pools) {
    trim(*pool, pool->threshold);
  }
  return sticky_error != cudaSuccess ? fail(sticky_error) : cudaSuccess;
}

void reset(const Options& options) {
  Machine::instance().reset(options);
}

void break_driver(cudaError_t error, int version) {
  auto& machine = Machine::instance();
  const std::lock_guard lock(machine.mutex);
  machine.driver_error = error;
  machine.driver_version = version;
}

void occupy(int device, const Others& others) {
  auto& machine = Machine::instance();
  const std::lock_guard lock(machine.mutex);
  machine.others[device] = others;
}

void fail_call(std::int64_t n, cudaError_t error, std::string_view name) {
  auto& machine = Machine::instance();
  const std::lock_guard lock(machine.mutex);
  machine.fail_countdown = n;
  machine.fail_error = error;
  machine.fail_name = name;
  machine.failed_call.clear();
}

std::string failed_call() {
  auto& machine = Machine::instance();
  const std::lock_guard lock(machine.mutex);
  return machine.failed_call;
}

void forget_wait(std::int64_t n, std::string_view name) {
  auto& machine = Machine::instance();
  const std::lock_guard lock(machine.mutex);
  machine.forget_countdown = n;
  machine.forget_name = name;
  machine.forget_thread = std::this_thread::get_id();
  machine.wait_forgotten = false;
}

bool wait_forgotten() {
  auto& machine = Machine::instance();
  const std::lock_guard lock(machine.mutex);
  return machine.wait_forgotten;
}

void fail_work(std::int64_t n, cudaError_t error) {
  auto& machine = Machine::instance();
  const std::lock_guard lock(machine.mutex);
  machine.work_countdown = n;
  machine.work_error = error;
}

std::int64_t calls(std::string_view name) {
  auto& machine = Machine::instance();
  const std::lock_guard lock(machine.mutex);
  return name.empty() ? static_cast<std::int64_t>(machine.log.size())
                      : std::count(machine.log.begin(), machine.log.end(), name);
}

std::vector<std::string> call_log() {
  auto& machine = Machine::instance();
  const std::lock_guard lock(machine.mutex);
  return machine.log;
}

std::vector<std::string> violations() {
  auto& machine = Machine::instance();
  const std::lock_guard lock(machine.mutex);
  return machine.violations;
}

void violate(const std::string& text) {
  auto& machine = Machine::instance();
  const std::lock_guard lock(machine.mutex);
  machine.violations.push_back(text);
}

std::vector<std::string> leaks() {
  auto& machine = Machine::instance();
  const std::lock_guard lock(machine.mutex);
  std::vector<std::string> result;
  for (const auto& [start, block] : machine.blocks) {
    if (!block.freed && !block.free_queued) {
      result.push_back(text(block.bytes, " bytes of ", block.pinned ? "pinned memory" : "device memory", " of device ",
                            block.device));
    }
  }
  for (const auto& [handle, pool] : machine.pools) {
    if (!pool->destroyed) {
      result.push_back(text("memory pool of device ", pool->device));
    }
  }
  for (const auto& [handle, queue] : machine.queues) {
    if (queue->alive && !queue->legacy) {
      result.push_back(text("stream ", queue->number, " of device ", queue->device));
    }
  }
  for (const auto& [handle, event] : machine.events) {
    result.push_back(text("event of device ", event->device));
  }
  for (const auto& capture : machine.captures) {
    result.push_back(text("capture of stream ", capture->origin->number));
  }
  for (const auto& [handle, graph] : machine.graphs) {
    result.push_back(text("graph of ", graph->nodes.size(), " nodes"));
  }
  for (const auto& [handle, graph] : machine.executables) {
    result.push_back(text("executable graph of ", graph->nodes.size(), " nodes"));
  }
  for (const auto& [device, count] : machine.retained) {
    result.push_back(text("context of device ", device, ", retained ", count, " times"));
  }
  const ThreadState& thread = thread_state();
  for (std::size_t i = thread.contexts.size() - thread.pushed; i < thread.contexts.size(); ++i) {
    result.push_back(text("context of device ", thread.contexts[i], " on this thread's stack"));
  }
  return result;
}

std::vector<int> devices_in_use() {
  auto& machine = Machine::instance();
  const std::lock_guard lock(machine.mutex);
  std::set<int> devices = machine.contexts;
  for (const auto& [device, count] : machine.retained) {
    devices.insert(device);
  }
  return {devices.begin(), devices.end()};
}

std::vector<int> launched_priorities() {
  auto& machine = Machine::instance();
  const std::lock_guard lock(machine.mutex);
  return machine.launched_priorities;
}

cudaError_t last_error() {
  auto& machine = Machine::instance();
  const std::lock_guard lock(machine.mutex);
  return thread_state().last_error;
}

std::size_t queued_work() {
  auto& machine = Machine::instance();
  const std::lock_guard lock(machine.mutex);
  std::size_t count = 0;
  for (const auto& [handle, queue] : machine.queues) {
    count += queue->work.size();
  }
  return count;
}

cudaError_t launch(cudaStream_t stream, std::function<void(std::span<const DeviceMemory>)> run) {
  auto& machine = Machine::instance();
  const std::lock_guard lock(machine.mutex);
  if (const cudaError_t status = machine.enter("cudaLaunchKernel"); status != cudaSuccess) {
    return status;
  }
  Queue* queue = machine.queue_of(stream);
  if (queue == nullptr || queue->device != thread_state().current()) {
    return machine.violate("cudaLaunchKernel: not a stream of the current device", cudaErrorInvalidResourceHandle);
  }
  return machine.enqueue(
      *queue, {.name = "cudaLaunchKernel",
               .run = [&machine, device = queue->device, run = std::move(run)] { machine.run_kernel(device, run); }});
}

bool is_device_memory(const void* pointer) {
  auto& machine = Machine::instance();
  const std::lock_guard lock(machine.mutex);
  const Block* block = machine.find(pointer);
  const auto* address = static_cast<const std::byte*>(pointer);
  return block != nullptr && !block->freed && !block->pinned && address >= block->data &&
         address < block->data + block->bytes;
}

std::size_t step(std::size_t n) {
  auto& machine = Machine::instance();
  const std::lock_guard lock(machine.mutex);
  std::size_t done = 0;
  while (done < n && machine.step_once(nullptr)) {
    ++done;
  }
  return done;
}

}  // namespace lockstep::standin
