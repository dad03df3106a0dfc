#include <lockstep/comm/nccl/nccl_communicator.hpp>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <future>
#include <map>
#include <mutex>
#include <sstream>
#include <thread>
#include <utility>

#include <lockstep/comm/error.hpp>
#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/cuda/device_guard.hpp>
#include <lockstep/runtime/machine/device_selection.hpp>

namespace lockstep::comm {
namespace {

using cuda::DeviceGuard;

/// Returns the functions of the library with which this program is linked.
const NcclFunctions& linked() {
  static const NcclFunctions kLinked{.all_reduce = ncclAllReduce,
                                     .reduce_scatter = ncclReduceScatter,
                                     .all_gather = ncclAllGather,
                                     .broadcast = ncclBroadcast,
                                     .send = ncclSend,
                                     .recv = ncclRecv,
                                     .group_start = ncclGroupStart,
                                     .group_end = ncclGroupEnd,
                                     .async_error = ncclCommGetAsyncError,
                                     .error_string = ncclGetErrorString,
                                     .last_error = ncclGetLastError};
  return kLinked;
}

ncclConfig_t config_of(const NcclOptions& options, Calls calls = Calls::return_at_once) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = calls == Calls::block ? 1 : 0;
  config.commName = options.name.c_str();
  if (options.most_blocks > 0) {  // also sets minCTAs, because NCCL refuses maxCTAs alone
    config.minCTAs = 1;
    config.maxCTAs = options.most_blocks;
  }
  return config;
}

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 22, 0)
constexpr bool kEstimates = true;

/// Ends the open group of operations without executing them, and sets `seconds` to the time that NCCL expects for them;
/// below 0 if NCCL has no estimate. NCCL estimates in microseconds (2.28.9, src/graph/tuning.cc, ncclTopoGetAlgoTime).
/// If the communicator's calls did not block, NCCL would execute the group and return ncclInProgress (src/group.cc,
/// ncclGroupEndInternal).
ncclResult_t end_estimate(double& seconds) {
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  const ncclResult_t result = ncclGroupSimulateEnd(&info);
  seconds = result == ncclSuccess ? 1e-6 * static_cast<double>(info.estimatedTime) : -1;
  return result;
}
#else
constexpr bool kEstimates = false;

ncclResult_t end_estimate(double& seconds) {
  seconds = -1;
  return ncclGroupEnd();
}
#endif

/// Writes each member of `rank` on its own line for rank_of(), so that no member can be read as another one.
std::string to_text(const NcclRank& rank) {
  return concat(rank.host, '\n', rank.gpu, '\n', rank.host_id, '\n', rank.version, '\n', rank.allow_shared_gpu, '\n',
                rank.failure);
}

NcclRank rank_of(const std::string& text) {
  std::istringstream in(text);
  std::array<std::string, 5> lines;
  for (std::string& line : lines) {
    std::getline(in, line);
  }
  std::string failure(std::istreambuf_iterator<char>(in), {});
  return {.host = lines[0],
          .gpu = lines[1],
          .host_id = lines[2],
          .version = std::stoi(lines[3]),
          .allow_shared_gpu = lines[4] == "1",
          .failure = std::move(failure)};
}

NcclRank describe(Device device, const NcclOptions& options) {
  NcclRank rank;
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  rank.host = host.data();
  rank.allow_shared_gpu = options.allow_shared_gpu;
  const char* id = std::getenv("NCCL_HOSTID");
  rank.host_id = id == nullptr ? "" : id;
  try {
    require<DeviceError>(device.kind == DeviceKind::cuda, "device is ", device, ", expected a GPU");
    const std::vector<GpuInfo> gpus = list_gpus();
    require<DeviceError>(device.index >= 0 && device.index < static_cast<int>(gpus.size()), device,
                         " does not exist, expected one of the ", gpus.size(), " GPUs that this process sees");
    rank.gpu = gpus[static_cast<std::size_t>(device.index)].uuid;
    const ncclResult_t result = ncclGetVersion(&rank.version);
    require<NcclError>(result == ncclSuccess,
                       "the version of NCCL cannot be read, expected ncclGetVersion to work: ", linked().words(result));
  } catch (const std::exception& error) {
    rank.failure = error.what();
  }
  return rank;
}

/// Rank 0 makes an ncclUniqueId and sends it to all ranks. If this fails on rank 0, all ranks throw NcclError.
ncclUniqueId share_id(Communicator& control) {
  ncclUniqueId id{};
  std::string text;
  if (control.rank() == 0) {
    const ncclResult_t result = ncclGetUniqueId(&id);
    text =
        result == ncclSuccess ? concat('+', std::string_view(id.internal, sizeof id.internal)) : linked().words(result);
  }
  text = broadcast_text(control, text);
  require<CollectiveError<NcclError>>(text.size() == sizeof id.internal + 1 && text[0] == '+',
                                      "nccl: rank 0: ncclGetUniqueId: ", text);
  std::copy(text.begin() + 1, text.end(), id.internal);
  return id;
}

/// Returns the seconds to wait for an abort. An abort that takes longer continues on its own thread.
double abort_wait(const NcclOptions& options) {
  constexpr double kLongest = 2;
  return std::min(options.timeout_s, kLongest);
}

void abort_and_wait(ncclComm_t comm, Device device, const SharedNcclOptions& options) noexcept {
  NcclAbort(comm, device, options).wait(abort_wait(*options));
}

/// Takes ownership of `comm`, and aborts it if no NcclCommunicator can be made.
std::unique_ptr<NcclCommunicator> take(ncclComm_t comm, int rank, int size, Device device,
                                       const SharedNcclOptions& options) {
  try {
    return std::make_unique<NcclCommunicator>(comm, rank, size, device, options);
  } catch (...) {
    abort_and_wait(comm, device, options);
    throw;
  }
}

std::unique_ptr<NcclCommunicator> start(const ncclUniqueId& id, int rank, int size, Device device,
                                        const SharedNcclOptions& options) {
  const DeviceGuard guard(device);
  ncclConfig_t config = config_of(*options);
  ncclComm_t comm = nullptr;
  ncclResult_t result = ncclCommInitRankConfig(&comm, size, id, rank, &config);
  if (comm != nullptr && (result == ncclSuccess || result == ncclInProgress)) {
    result = linked().poll(comm, options->timeout_s);
  }
  if (result != ncclSuccess) {
    const std::string text = linked().state_text(result, options->timeout_s);
    if (comm != nullptr) {
      abort_and_wait(comm, device, options);
    }
    throw NcclError(concat("set-up with ", size, " ranks on ", device, ": ", text));
  }
  return take(comm, rank, size, device, options);
}

}  // namespace

NcclAbort::NcclAbort(ncclComm_t comm, Device device, SharedNcclOptions options) noexcept {
  try {
    std::promise<void> over;
    over_ = over.get_future();
    thread_ = std::thread([comm, device, options = std::move(options), over = std::move(over)]() mutable {
      const DeviceGuard guard(device, std::nothrow);
      ncclCommAbort(comm);
      over.set_value();
    });
  } catch (const std::exception&) {  // no thread could be started, so the communicator is not aborted
  }
}

NcclAbort::~NcclAbort() {
  if (thread_.joinable()) {
    thread_.detach();
  }
}

void NcclAbort::wait(double seconds) noexcept {
  if (thread_.joinable() && over_.wait_for(std::chrono::duration<double>(seconds)) == std::future_status::ready) {
    thread_.join();
  }
}

NcclCommunicator::NcclCommunicator(ncclComm_t comm, int rank, int size, Device device, SharedNcclOptions options)
    : NcclExchange(linked(), comm, rank, size, device, options->timeout_s),
      options_(std::move(options)),
      uncaught_(std::uncaught_exceptions()) {}

NcclCommunicator::~NcclCommunicator() {
  const DeviceGuard guard(device(), std::nothrow);
  if (comm() != nullptr) {
    // Ends the communicator together with the other ranks. During an exception, aborts it, because the other ranks may
    // never call their destructors.
    if (std::uncaught_exceptions() == uncaught_ && settled(ncclCommFinalize(comm())) == ncclSuccess &&
        ncclCommDestroy(comm()) == ncclSuccess) {
      return;
    }
    abort(release());
  } else if (abort_) {
    // Waits for the abort once more, because a graph that blocked it may be destroyed by now.
    abort_->wait(abort_wait(*options_));
  }
}

void NcclCommunicator::give_up(ncclComm_t comm) noexcept {
  if (std::exchange(estimating_, false)) {  // ends the group before its communicator is destroyed
    double ignored = 0;
    end_estimate(ignored);
  }
  abort(comm);
}

void NcclCommunicator::abort(ncclComm_t comm) noexcept {
  abort_.emplace(comm, device(), options_);
  abort_->wait(abort_wait(*options_));
}

std::unique_ptr<Communicator> NcclCommunicator::split(int color, int key) {
  return split(color, key, Calls::return_at_once);
}

std::unique_ptr<NcclCommunicator> NcclCommunicator::split(int color, int key, Calls calls) {
  require<UsageError>(color >= 0, "split: color is ", color, ", expected 0 or more");
  require_alive("split");
  const DeviceGuard guard(device());
  ncclConfig_t config = config_of(*options_, calls);
  ncclComm_t part = nullptr;
  // NCCL reports the split as in progress first on the parent communicator, until `part` exists, and then on `part`. So
  // this code waits on both communicators.
  ncclResult_t result = settled(ncclCommSplit(comm(), color, key, &part, &config));
  if (result == ncclSuccess && part != nullptr) {
    result = linked().poll(part, options_->timeout_s);
  }
  int part_rank = 0;
  int part_size = 0;
  if (result == ncclSuccess) {
    result = part == nullptr ? ncclInternalError : ncclCommUserRank(part, &part_rank);
  }
  if (result == ncclSuccess) {
    result = ncclCommCount(part, &part_size);
  }
  if (result != ncclSuccess) {
    if (part != nullptr) {
      abort_and_wait(part, device(), options_);
    }
    fail(concat("split, color ", color), result);
  }
  auto child = take(part, part_rank, part_size, device(), options_);
  child->first_operation();
  return child;
}

std::optional<double> NcclCommunicator::estimate(const std::function<void(Communicator&)>& f) {
  require_alive("estimate");
  const DeviceGuard guard(device());
  if (size() == 1) {
    return std::nullopt;  // no estimate, because with one rank NCCL copies at once, even within a group
  }
  estimating_ = true;
  if (const ncclResult_t begun = ncclGroupStart(); begun != ncclSuccess) {
    fail("estimate", begun);
  }
  double seconds = -1;
  try {
    f(*this);
  } catch (...) {
    if (std::exchange(estimating_, false)) {
      end_estimate(seconds);
    }
    throw;
  }
  estimating_ = false;
  const ncclResult_t result = settled(end_estimate(seconds));
  if (result != ncclSuccess) {
    fail("estimate", result);
  }
  return seconds > 0 && std::isfinite(seconds) ? std::optional(seconds) : std::nullopt;
}

namespace {

class Estimator final : public NcclEstimator {
 public:
  explicit Estimator(std::unique_ptr<NcclCommunicator> communicator) : communicator_(std::move(communicator)) {}
  [[nodiscard]] std::optional<double> seconds(const std::function<void(Communicator&)>& f) override {
    return communicator_->estimate(f);
  }

 private:
  std::unique_ptr<NcclCommunicator> communicator_;
};

}  // namespace

std::unique_ptr<NcclEstimator> make_nccl_estimator(Communicator& communicator) {
  auto* nccl = dynamic_cast<NcclCommunicator*>(&communicator.unwrapped());
  if (nccl == nullptr || !kEstimates) {
    return nullptr;
  }
  return std::make_unique<Estimator>(nccl->split(/*color=*/0, /*key=*/nccl->rank(), Calls::block));
}

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 19, 0)
void* NcclCommunicator::register_memory(void* data, std::size_t bytes) noexcept {
  void* handle = nullptr;
  const DeviceGuard guard(device(), std::nothrow);
  return comm() != nullptr && settled(ncclCommRegister(comm(), data, bytes, &handle)) == ncclSuccess ? handle : nullptr;
}

void NcclCommunicator::deregister_memory(void* handle) noexcept {
  if (comm() != nullptr && handle != nullptr) {
    const DeviceGuard guard(device(), std::nothrow);
    static_cast<void>(settled(ncclCommDeregister(comm(), handle)));
  }
}

namespace {

class NcclMemory final : public MemoryResource {
 public:
  explicit NcclMemory(NcclCommunicator& communicator) : communicator_(communicator) {}

  void* allocate(std::size_t bytes, std::size_t alignment, Stream& stream) override {
    require<ShapeError>(std::has_single_bit(alignment), "allocate: alignment is ", alignment,
                        ", expected a power of two");
    if (bytes == 0) {
      return nullptr;
    }
    const SyncScope scope(stream, "NcclMemory::allocate", SyncReason::allocation, bytes);
    const DeviceGuard guard(device());
    void* pointer = nullptr;
    const ncclResult_t result = ncclMemAlloc(&pointer, bytes);
    require<OutOfMemory>(result == ncclSuccess, "requested ", bytes, " bytes of ncclMemAlloc on ", device(),
                         ", expected that much free memory: ", linked().words(result));
    if (reinterpret_cast<std::uintptr_t>(pointer) % alignment != 0) {
      ncclMemFree(pointer);
      throw UnsupportedError(concat("allocate: ncclMemAlloc on ", device(), " does not align to ", alignment,
                                    " bytes, expected a smaller alignment"));
    }
    void* const handle = communicator_.register_memory(pointer, bytes);
    const std::lock_guard lock(mutex_);
    handles_[pointer] = handle;
    counter_.add(bytes);
    return pointer;
  }

  void deallocate(void* pointer, std::size_t bytes, std::size_t /*alignment*/, Stream& stream) noexcept override {
    if (pointer == nullptr) {
      return;
    }
    const SyncScope scope(stream, "NcclMemory::deallocate", SyncReason::release, bytes);
    try {
      stream.synchronize();
    } catch (const std::exception&) {  // earlier work has failed; threads that wait for it get the exception, too
    }
    const DeviceGuard guard(device(), std::nothrow);
    const std::lock_guard lock(mutex_);
    const auto found = handles_.find(pointer);
    communicator_.deregister_memory(found->second);
    handles_.erase(found);
    ncclMemFree(pointer);
    counter_.subtract(bytes);
  }

  [[nodiscard]] Device device() const override { return communicator_.place(); }
  [[nodiscard]] std::optional<MemoryUsage> usage() const override { return counter_.usage(); }

 private:
  NcclCommunicator& communicator_;
  MemoryCounter counter_;
  std::mutex mutex_;
  std::map<void*, void*> handles_;  ///< maps each allocated address to NCCL's handle
};

}  // namespace

std::unique_ptr<MemoryResource> NcclCommunicator::exchange_memory() {
  return std::make_unique<NcclMemory>(*this);
}
#else
void* NcclCommunicator::register_memory(void*, std::size_t) noexcept {
  return nullptr;
}

void NcclCommunicator::deregister_memory(void*) noexcept {}

std::unique_ptr<MemoryResource> NcclCommunicator::exchange_memory() {
  return nullptr;
}
#endif

std::unique_ptr<Communicator> make_nccl_communicator(Communicator& control, Device device, const NcclOptions& options) {
  require<UsageError>(options.timeout_s > 0, "nccl: timeout is ", options.timeout_s, " s, expected more than 0");
  require<UsageError>(options.most_blocks >= 0 && options.most_blocks <= 64, "nccl: most_blocks is ",
                      options.most_blocks, ", expected 0 to 64");
  std::vector<NcclRank> ranks;
  for (const std::string& text : all_gather_text(control, to_text(describe(device, options)))) {
    ranks.push_back(rank_of(text));
  }
  check_nccl_ranks(ranks, NCCL_VERSION_CODE);
  const ncclUniqueId id = share_id(control);

  std::unique_ptr<NcclCommunicator> communicator;
  std::string failure;
  try {
    communicator = start(id, control.rank(), control.size(), device, std::make_shared<const NcclOptions>(options));
    communicator->first_operation();
  } catch (const std::exception& error) {
    failure = error.what();
  }
  // Every rank comes here, at the latest after timeout_s. So all ranks learn whether set-up failed on any rank.
  const std::vector<std::string> failures = all_gather_text(control, failure);
  for (std::size_t r = 0; r < failures.size(); ++r) {
    if (!failures[r].empty()) {
      throw CollectiveError<NcclError>(concat("nccl: rank ", r, " on ", ranks[r].host, ": ", failures[r]));
    }
  }
  return communicator;
}

bool has_nccl() {
  return true;
}

}  // namespace lockstep::comm
