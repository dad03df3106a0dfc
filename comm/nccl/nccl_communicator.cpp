#include <lockstep/comm/nccl/nccl_communicator.hpp>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <exception>
#include <future>
#include <sstream>
#include <thread>
#include <utility>

#include <lockstep/comm/detail/checks.hpp>
#include <lockstep/comm/error.hpp>
#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/comm/wait.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/cuda/device_guard.hpp>
#include <lockstep/runtime/machine/device_selection.hpp>

namespace lockstep::comm {
namespace {

using Clock = std::chrono::steady_clock;
using cuda::DeviceGuard;

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return ncclFloat32;
    case DType::f64:
      return ncclFloat64;
    case DType::bf16:
      return ncclBfloat16;
    case DType::f16:
      return ncclFloat16;
    case DType::u8:
      return ncclUint8;
    case DType::i32:
      return ncclInt32;
    case DType::i64:
      return ncclInt64;
    case DType::u64:
      break;
  }
  return ncclUint64;
}

std::size_t count_of(const TensorView& view) {
  return static_cast<std::size_t>(view.numel());
}

/// The r-th of `size` equal parts of a tensor's elements.
void* part_of(const TensorView& view, int r, int size) {
  return static_cast<std::byte*>(view.data) +
         static_cast<std::size_t>(r) * (view.bytes() / static_cast<std::size_t>(size));
}

/// NCCL's text for an error. ncclGetLastError() belongs to the process and is never cleared: its text may be older.
std::string words(ncclResult_t result) {
  const char* last = ncclGetLastError(nullptr);
  const std::string_view detail = last == nullptr ? "" : last;
  return concat(ncclGetErrorString(result), detail.empty() ? "" : "; NCCL's last message: ", detail);
}

/// The state of a communicator once it is no longer in progress; ncclInProgress when the time is over. The NCCL call
/// also advances what was begun, so the thread that uses the communicator must make it.
ncclResult_t poll(ncclComm_t comm, double seconds) {
  constexpr std::chrono::microseconds kPatience(100);
  constexpr std::chrono::microseconds kPause(20);
  const Clock::time_point start = Clock::now();
  while (true) {
    ncclResult_t state = ncclInProgress;
    const ncclResult_t asked = ncclCommGetAsyncError(comm, &state);
    if (asked != ncclSuccess) {
      return asked;
    }
    const Clock::duration waited = Clock::now() - start;
    if (state != ncclInProgress || std::chrono::duration<double>(waited).count() > seconds) {
      return state;
    }
    if (waited < kPatience) {  // an operation is enqueued in less time than a sleep takes
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kPause);
    }
  }
}

ncclConfig_t config_of(const NcclOptions& options, Calls calls = Calls::return_at_once) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = calls == Calls::block ? 1 : 0;
  config.commName = options.name.c_str();
  if (options.most_blocks > 0) {  // NCCL refuses one without the other
    config.minCTAs = 1;
    config.maxCTAs = options.most_blocks;
  }
  return config;
}

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 22, 0)
constexpr bool kEstimates = true;

/// Ends the open group without executing it, and returns the time that NCCL expects, negative for none. NCCL counts in
/// microseconds (2.28.9, src/graph/tuning.cc, ncclTopoGetAlgoTime). On a communicator whose calls do not block it would
/// execute the group and answer that it is in progress (src/group.cc, ncclGroupEndInternal).
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

std::string state_text(ncclResult_t result, double timeout_s) {
  return result == ncclInProgress ? concat("not over after ", timeout_s, " s") : words(result);
}

/// One line per value, so that no value can be read as another one.
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
                         " does not exist, this process sees ", gpus.size(), " GPUs");
    rank.gpu = gpus[static_cast<std::size_t>(device.index)].uuid;
    const ncclResult_t result = ncclGetVersion(&rank.version);
    require<NcclError>(result == ncclSuccess, "ncclGetVersion: ", words(result));
  } catch (const std::exception& error) {
    rank.failure = error.what();
  }
  return rank;
}

/// Sends rank 0's id to all ranks. A failure on rank 0 is an error of all ranks.
ncclUniqueId share_id(Communicator& control) {
  ncclUniqueId id{};
  std::string text;
  if (control.rank() == 0) {
    const ncclResult_t result = ncclGetUniqueId(&id);
    text = result == ncclSuccess ? concat('+', std::string_view(id.internal, sizeof id.internal)) : words(result);
  }
  text = broadcast_text(control, text);
  require<CollectiveError<NcclError>>(text.size() == sizeof id.internal + 1 && text[0] == '+',
                                      "nccl: rank 0: ncclGetUniqueId: ", text);
  std::copy(text.begin() + 1, text.end(), id.internal);
  return id;
}

/// Seconds to wait for an abort; one that takes longer continues on its own.
double abort_wait(const NcclOptions& options) {
  constexpr double kLongest = 2;
  return std::min(options.timeout_s, kLongest);
}

void abort_and_wait(ncclComm_t comm, Device device, const SharedNcclOptions& options) noexcept {
  NcclAbort(comm, device, options).wait(abort_wait(*options));
}

/// Owns comm, and aborts it when no communicator can be made of it.
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
    result = poll(comm, options->timeout_s);
  }
  if (result != ncclSuccess) {
    const std::string text = state_text(result, options->timeout_s);
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
  } catch (const std::exception&) {  // no thread could be started: the communicator stays as it is
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
    : Communicator(rank, size),
      comm_(comm),
      device_(device),
      options_(std::move(options)),
      own_(device),
      scratch_(Tensor::zeros(own_, Shape{1}, DType::i32)),
      uncaught_(std::uncaught_exceptions()) {
  own_.synchronize();  // other streams may use scratch_
}

NcclCommunicator::~NcclCommunicator() {
  const DeviceGuard guard(device_, std::nothrow);
  if (comm_ != nullptr) {
    // Ends the communicator together with the other ranks. When an exception unwinds this rank, they may never come.
    if (std::uncaught_exceptions() == uncaught_ && settled(ncclCommFinalize(comm_)) == ncclSuccess &&
        ncclCommDestroy(comm_) == ncclSuccess) {
      return;
    }
    abort();
  } else if (abort_) {
    abort_->wait(abort_wait(*options_));  // a graph that was in its way may be gone by now
  }
}

void NcclCommunicator::abort() noexcept {
  abort_.emplace(std::exchange(comm_, nullptr), device_, options_);
  abort_->wait(abort_wait(*options_));
}

ncclResult_t NcclCommunicator::settled(ncclResult_t result) {
  return result == ncclInProgress ? poll(comm_, options_->timeout_s) : result;
}

void NcclCommunicator::require_alive(std::string_view op) const {
  require<NcclError>(comm_ != nullptr, op, ": the communicator was aborted: ", failure_);
}

void NcclCommunicator::fail(const std::string& what, ncclResult_t result) {
  failure_ = concat("nccl: rank ", rank(), " of ", size(), " on ", device_, ": ", what, ": ",
                    state_text(result, options_->timeout_s));
  if (std::exchange(estimating_, false)) {  // before the communicator of the group is destroyed
    double ignored = 0;
    end_estimate(ignored);
  }
  abort();
  throw NcclError(failure_);
}

template <class Call>
void NcclCommunicator::run(std::string_view op, const TensorView& data, Call&& call) {
  require_alive(op);
  const DeviceGuard guard(device_);
  // Every rank has nothing to exchange: NCCL need not be called.
  const ncclResult_t result = data.numel() > 0 ? settled(call()) : ncclSuccess;
  if (result != ncclSuccess) {
    fail(concat(op, " of ", data.numel(), " x ", data.dtype), result);
  }
  ++counts_.calls;
  counts_.bytes += static_cast<std::int64_t>(data.bytes());
}

void NcclCommunicator::all_reduce(Stream& stream, const TensorView& data) {
  detail::check_on(device_, "all_reduce", stream, data);
  detail::check_summable("all_reduce", data.dtype);
  run("all_reduce", data, [&] {
    return ncclAllReduce(data.data, data.data, count_of(data), type_of(data.dtype), ncclSum, comm_,
                         stream.cuda_handle());
  });
}

void NcclCommunicator::reduce_scatter(Stream& stream, const TensorView& in, const TensorView& out) {
  detail::check_on(device_, "reduce_scatter", stream, in);
  detail::check_on(device_, "reduce_scatter", stream, out);
  detail::check_summable("reduce_scatter", in.dtype);
  detail::check_parts("reduce_scatter", in, out, size());
  detail::check_separate("reduce_scatter", in, out);
  run("reduce_scatter", in, [&] {
    return ncclReduceScatter(in.data, out.data, count_of(out), type_of(in.dtype), ncclSum, comm_, stream.cuda_handle());
  });
}

void NcclCommunicator::all_gather(Stream& stream, const TensorView& in, const TensorView& out) {
  detail::check_on(device_, "all_gather", stream, in);
  detail::check_on(device_, "all_gather", stream, out);
  detail::check_parts("all_gather", out, in, size());
  static_cast<void>(detail::check_in_place("all_gather", in, out, rank()));  // NCCL compares the addresses itself
  run("all_gather", in,
      [&] { return ncclAllGather(in.data, out.data, count_of(in), type_of(in.dtype), comm_, stream.cuda_handle()); });
}

void NcclCommunicator::all_to_all(Stream& stream, const TensorView& in, const TensorView& out) {
  detail::check_on(device_, "all_to_all", stream, in);
  detail::check_on(device_, "all_to_all", stream, out);
  detail::check_exchange("all_to_all", in, out, size());
  run("all_to_all", in, [&] {
    const std::size_t n = count_of(in) / static_cast<std::size_t>(size());
    ncclResult_t result = ncclGroupStart();
    const auto begun = [&] { return result == ncclSuccess || result == ncclInProgress; };
    for (int r = 0; r < size() && begun(); ++r) {
      result = ncclSend(part_of(in, r, size()), n, type_of(in.dtype), r, comm_, stream.cuda_handle());
      if (begun()) {
        result = ncclRecv(part_of(out, r, size()), n, type_of(in.dtype), r, comm_, stream.cuda_handle());
      }
    }
    const ncclResult_t ended = ncclGroupEnd();  // also after an error: an open group would take up the next calls
    return begun() ? ended : result;
  });
}

void NcclCommunicator::broadcast(Stream& stream, const TensorView& data, int root) {
  detail::check_on(device_, "broadcast", stream, data);
  detail::check_rank("broadcast", root, size());
  run("broadcast", data, [&] {
    return ncclBroadcast(data.data, data.data, count_of(data), type_of(data.dtype), root, comm_, stream.cuda_handle());
  });
}

void NcclCommunicator::barrier(Stream& stream) {
  detail::check_stream(device_, "barrier", stream);
  const TensorView data = scratch_.view();
  run("barrier", data, [&] {
    return ncclAllReduce(data.data, data.data, 1, type_of(data.dtype), ncclSum, comm_, stream.cuda_handle());
  });
  counts_.bytes -= static_cast<std::int64_t>(data.bytes());  // this all-reduce is not the caller's
}

void NcclCommunicator::send(Stream& stream, const TensorView& data, int to) {
  detail::check_on(device_, "send", stream, data);
  detail::check_peer("send", to, rank(), size());
  run("send", data,
      [&] { return ncclSend(data.data, count_of(data), type_of(data.dtype), to, comm_, stream.cuda_handle()); });
}

void NcclCommunicator::recv(Stream& stream, const TensorView& data, int from) {
  detail::check_on(device_, "recv", stream, data);
  detail::check_peer("recv", from, rank(), size());
  run("recv", data,
      [&] { return ncclRecv(data.data, count_of(data), type_of(data.dtype), from, comm_, stream.cuda_handle()); });
}

std::unique_ptr<Communicator> NcclCommunicator::split(int color, int key) {
  return split(color, key, Calls::return_at_once);
}

std::unique_ptr<NcclCommunicator> NcclCommunicator::split(int color, int key, Calls calls) {
  require<UsageError>(color >= 0, "split: color is ", color, ", expected 0 or more");
  require_alive("split");
  const DeviceGuard guard(device_);
  ncclConfig_t config = config_of(*options_, calls);
  ncclComm_t part = nullptr;
  // The parent is in progress until the new communicator exists, and the new one until it is ready.
  ncclResult_t result = settled(ncclCommSplit(comm_, color, key, &part, &config));
  if (result == ncclSuccess && part != nullptr) {
    result = poll(part, options_->timeout_s);
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
      abort_and_wait(part, device_, options_);
    }
    fail(concat("split, color ", color), result);
  }
  auto child = take(part, part_rank, part_size, device_, options_);
  child->first_operation();
  return child;
}

void NcclCommunicator::check() {
  require_alive("check");
  const DeviceGuard guard(device_);
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
  state = asked != ncclSuccess ? asked : state;
  if (state != ncclSuccess && state != ncclInProgress) {
    fail("while operations were under way", state);
  }
}

void NcclCommunicator::first_operation() {
  barrier(own_.stream());
  Event done(device_);
  own_.stream().record(done);
  if (!wait_for(done, *this, options_->timeout_s)) {
    fail("the first operation", ncclInProgress);
  }
  counts_ = {};
}

std::optional<double> NcclCommunicator::estimate(const std::function<void(Communicator&)>& f) {
  require_alive("estimate");
  const DeviceGuard guard(device_);
  if (size() == 1) {
    return std::nullopt;  // there NCCL copies at once, also within a group
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
  auto* nccl = dynamic_cast<NcclCommunicator*>(&communicator);
  if (nccl == nullptr || !kEstimates) {
    return nullptr;
  }
  return std::make_unique<Estimator>(nccl->split(/*color=*/0, /*key=*/nccl->rank(), Calls::block));
}

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
  // Every rank gets here, at the latest when its time is over; so all ranks learn whether set-up failed on any rank.
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
