#include <lockstep/comm/mpi/mpi_communicator.hpp>

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include <lockstep/comm/detail/checks.hpp>
#include <lockstep/comm/mpi/detail/mpi_internal.hpp>
#include <lockstep/comm/mpi/detail/node_window.hpp>
#include <lockstep/comm/shared/shared_sum.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::comm {
namespace {

using detail::check_mpi;
using detail::name_of_level;

constexpr int kTag = 0;

/// A duplicate of the caller's MPI communicator, with data for its operations. The Communicator, queued operations and
/// an attribute of MPI_COMM_SELF share a Link. MPI_Finalize deletes the attribute, which frees the duplicate if the
/// program has not freed it.
struct Link {
  MPI_Comm comm = MPI_COMM_NULL;  ///< null after the duplicate was freed
  int keyval = MPI_KEYVAL_INVALID;
  int rank = 0;
  int size = 0;
  std::int64_t most_per_call = 0;
  MPI_Op add_bf16 = MPI_OP_NULL;  ///< adds bf16 numbers; MPI has no 16-bit floating-point types
  MPI_Op add_f16 = MPI_OP_NULL;
  HostAllReduce asked = HostAllReduce::automatic;
  bool all_in_memory = false;
  std::optional<detail::NodeWindow> window;
  std::optional<SharedSum> shared;  ///< sums in the window; empty without a window
  std::vector<std::byte> part;      ///< buffer for this rank's part of a reduce_scatter() in place; never shrinks
  std::atomic<std::int64_t> calls = 0;
  std::atomic<std::int64_t> bytes = 0;

  void count(std::size_t of_call) {
    calls.store(calls.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    bytes.store(bytes.load(std::memory_order_relaxed) + static_cast<std::int64_t>(of_call), std::memory_order_relaxed);
  }
};

/// Adds each of `*count` elements of `in` to one of `to` and rounds the sum to T. MPI calls this (MPI_Op_create).
template <class T>
void add_elements(void* in, void* to, int* count, MPI_Datatype* /*type*/) {
  const T* from = static_cast<const T*>(in);  // `*count` elements
  T* total = static_cast<T*>(to);             // `*count` elements
  for (int i = 0; i < *count; ++i) {
    total[i] = detail::add(from[i], total[i]);
  }
}

int free_link(MPI_Comm /*self*/, int /*keyval*/, void* value, void* /*extra*/) {
  auto* holder = static_cast<std::shared_ptr<Link>*>(value);
  for (MPI_Op* op : {&(*holder)->add_bf16, &(*holder)->add_f16}) {
    if (*op != MPI_OP_NULL) {
      MPI_Op_free(op);
    }
  }
  const int rc = (*holder)->comm == MPI_COMM_NULL ? MPI_SUCCESS : MPI_Comm_free(&(*holder)->comm);
  delete holder;
  return rc;
}

/// Returns true if the ranks, all of one node, may together use at least one processor for each rank. Launchers bind a
/// rank to one processor, to several that it shares with other ranks, or to none. Collective.
bool each_has_a_core(MPI_Comm comm, int ranks) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  ::sched_getaffinity(0, sizeof cores, &cores);  // with over 1,024 processors, the call fails and `cores` stays empty
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &cores, sizeof cores, MPI_BYTE, MPI_BOR, comm), "MPI_Allreduce");
  return CPU_COUNT(&cores) >= ranks;
}

/// Makes the window (memory that the ranks share) if the options require it. If the ranks have different options, makes
/// no window. Collective.
void share_memory(Link& link, HostAllReduce asked, bool all_in_memory) {
  const int what = static_cast<int>(asked) * 2 + (all_in_memory ? 1 : 0);
  int least_and_most[] = {what, -what};
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, least_and_most, 2, MPI_INT, MPI_MIN, link.comm), "MPI_Allreduce");
  const bool same = least_and_most[0] == -least_and_most[1];
  link.all_in_memory = same && all_in_memory;
  link.asked = same ? asked : HostAllReduce::mpi;
  if (link.asked == HostAllReduce::mpi || link.size == 1) {
    return;
  }
  link.window.emplace(link.comm, SharedSum::window_bytes(link.size));
  if (link.window->memory() != nullptr) {
    // A rank that waits calls MPI_Iprobe, so that MPI also advances messages of the program, as MPI_Allreduce would.
    const auto progress = [comm = link.comm] {
      int found = 0;
      MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &found, MPI_STATUS_IGNORE);
    };
    const bool cores = each_has_a_core(link.comm, link.size);
    link.shared.emplace(link.window->memory(), link.rank, link.size,
                        SharedSumOptions{.each_has_a_core = cores, .idle = progress});
  }
  require<MpiError>(link.shared || link.asked == HostAllReduce::automatic,
                    "mpi communicator: the ranks cannot share memory: ",
                    link.window->why_not().empty() ? "they are on several nodes" : link.window->why_not(),
                    "; expected HostAllReduce::automatic or mpi");
}

/// Makes a Link that takes ownership of `comm`.
std::shared_ptr<Link> make_link(MPI_Comm comm, std::int64_t most_per_call, HostAllReduce all_reduce,
                                bool all_in_memory) {
  auto link = std::make_shared<Link>();
  link->comm = comm;
  link->most_per_call = most_per_call;
  check_mpi(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check_mpi(MPI_Comm_rank(comm, &link->rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(comm, &link->size), "MPI_Comm_size");
  check_mpi(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, free_link, &link->keyval, nullptr), "MPI_Comm_create_keyval");
  check_mpi(MPI_Op_create(add_elements<BFloat16>, 1, &link->add_bf16), "MPI_Op_create");
  check_mpi(MPI_Op_create(add_elements<Float16>, 1, &link->add_f16), "MPI_Op_create");
  auto holder = std::make_unique<std::shared_ptr<Link>>(link);
  check_mpi(MPI_Comm_set_attr(MPI_COMM_SELF, link->keyval, holder.get()), "MPI_Comm_set_attr");
  static_cast<void>(holder.release());  // MPI owns the object now
  share_memory(*link, all_reduce, all_in_memory);
  return link;
}

/// Streams on which a communicator accepts operations.
enum class Path { any_stream, sole_worker, inline_only };

int thread_level() {
  int level = MPI_THREAD_SINGLE;
  check_mpi(MPI_Query_thread(&level), "MPI_Query_thread");
  return level;
}

Path path_of_process(const Stream* worker) {
  int initialised = 0;
  int finalised = 0;
  MPI_Initialized(&initialised);
  MPI_Finalized(&finalised);
  require<StateError>(initialised != 0, "mpi communicator: MPI is not initialised, expected MPI_Init before");
  require<StateError>(finalised == 0,
                      "mpi communicator: MPI was finalised, expected a communicator before MPI_Finalize");
  require<StateError>(worker == nullptr || (worker->device() == Device::cpu() && !worker->is_inline()),
                      "mpi communicator: sole_mpi_worker is an inline or a CUDA stream, expected a host worker");
  switch (thread_level()) {
    case MPI_THREAD_MULTIPLE:
      return Path::any_stream;
    case MPI_THREAD_SERIALIZED:
      return worker != nullptr ? Path::sole_worker : Path::inline_only;
    default:
      return Path::inline_only;
  }
}

/// Registers a communicator as a user of the process's sole worker, the only worker that may make MPI calls at thread
/// level SERIALIZED. Communicators that were made without a worker must wait for this worker, too, because the thread
/// level holds for all MPI calls of the process.
class WorkerShare {
 public:
  /// Throws StateError if existing communicators use a worker other than `worker`.
  explicit WorkerShare(Stream* worker) : worker_(worker) {
    const std::lock_guard lock(mutex_);
    require<StateError>(sharers_ == 0 || sole_ == worker,
                        "mpi communicator: MPI's thread level is serialized and communicators that exist were made "
                        "with another sole_mpi_worker, expected that one for all");
    sole_ = worker;
    ++sharers_;
  }
  WorkerShare(const WorkerShare& other) : WorkerShare(other.worker_) {}
  WorkerShare& operator=(const WorkerShare&) = delete;
  ~WorkerShare() {
    const std::lock_guard lock(mutex_);
    --sharers_;
    sole_ = sharers_ == 0 ? nullptr : sole_;
  }
  [[nodiscard]] Stream& worker() const { return *worker_; }

  /// Waits until the process's sole worker, if there is one, makes no MPI call. Rethrows the worker's failure.
  static void wait_until_idle() {
    Stream* sole = nullptr;
    {
      const std::lock_guard lock(mutex_);
      sole = sole_;
    }
    if (sole != nullptr) {
      sole->synchronize();
    }
  }

 private:
  Stream* worker_;
  inline static std::mutex mutex_;
  inline static Stream* sole_ = nullptr;
  inline static int sharers_ = 0;
};

MPI_Datatype sum_type(DType dtype) {
  // 16-bit floating-point numbers are passed as MPI_UINT16_T with add_bf16 or add_f16; u8 has no sum.
  static const MPI_Datatype kTypes[] = {MPI_FLOAT,         MPI_DOUBLE,  MPI_UINT16_T, MPI_UINT16_T,
                                        MPI_DATATYPE_NULL, MPI_INT32_T, MPI_INT64_T,  MPI_UINT64_T};
  return kTypes[static_cast<std::size_t>(dtype)];
}

MPI_Op sum_of(const Link& link, DType dtype) {
  return dtype == DType::bf16 ? link.add_bf16 : dtype == DType::f16 ? link.add_f16 : MPI_SUM;
}

/// Returns the MPI type for moving data of `dtype`. For moving data, only the width of an element matters.
MPI_Datatype move_type(DType dtype) {
  switch (size_of(dtype)) {
    case 1:
      return MPI_UINT8_T;
    case 2:
      return MPI_UINT16_T;
    case 4:
      return MPI_UINT32_T;
    default:
      return MPI_UINT64_T;
  }
}

std::byte* at(const TensorView& view, std::int64_t element) {
  return static_cast<std::byte*>(view.data) + element * static_cast<std::int64_t>(size_of(view.dtype));
}

/// Cuts [0, n) into ranges of at most `most` elements and calls f(first element, number of elements) for each.
template <class F>
void in_pieces(std::int64_t n, std::int64_t most, F&& f) {
  for (std::int64_t i = 0; i < n; i += most) {
    f(i, static_cast<int>(std::min(most, n - i)));
  }
}

/// An MPI type for `count` elements out of every `stride` elements, so one MPI call moves a range of each rank's part.
class PieceType {
 public:
  PieceType(DType dtype, int count, std::int64_t stride) {
    MPI_Datatype piece = MPI_DATATYPE_NULL;
    check_mpi(MPI_Type_contiguous(count, move_type(dtype), &piece), "MPI_Type_contiguous");
    const auto extent = static_cast<MPI_Aint>(stride) * static_cast<MPI_Aint>(size_of(dtype));
    const int rc = MPI_Type_create_resized(piece, 0, extent, &type_);
    MPI_Type_free(&piece);
    check_mpi(rc, "MPI_Type_create_resized");
    check_mpi(MPI_Type_commit(&type_), "MPI_Type_commit");
  }
  ~PieceType() {
    if (type_ != MPI_DATATYPE_NULL) {
      MPI_Type_free(&type_);
    }
  }
  PieceType(const PieceType&) = delete;
  PieceType& operator=(const PieceType&) = delete;
  [[nodiscard]] MPI_Datatype get() const { return type_; }

 private:
  MPI_Datatype type_ = MPI_DATATYPE_NULL;
};

void all_reduce(Link& link, const TensorView& data) {
  if (link.shared) {
    link.shared->all_reduce(data);
    return;
  }
  in_pieces(data.numel(), link.most_per_call, [&](std::int64_t i, int n) {
    check_mpi(MPI_Allreduce(MPI_IN_PLACE, at(data, i), n, sum_type(data.dtype), sum_of(link, data.dtype), link.comm),
              "all_reduce of ", n, " x ", data.dtype);
  });
}

void reduce_scatter(Link& link, const TensorView& in, const TensorView& out, bool in_place) {
  if (link.all_in_memory && link.shared) {
    link.shared->reduce_scatter(in, out);
    return;
  }
  const std::int64_t n = out.numel();
  if (n <= link.most_per_call / link.size) {
    // With MPI_IN_PLACE, MPI would write this rank's sums over the first part of `in`, which belongs to rank 0.
    // So the sums are written to link.part first.
    if (in_place && link.part.size() < out.bytes()) {
      link.part.resize(out.bytes());
    }
    void* to = in_place ? link.part.data() : out.data;
    check_mpi(MPI_Reduce_scatter_block(in.data, to, static_cast<int>(n), sum_type(in.dtype), sum_of(link, in.dtype),
                                       link.comm),
              "reduce_scatter of ", n, " x ", in.dtype);
    if (in_place && n > 0) {
      std::memcpy(out.data, to, out.bytes());
    }
    return;
  }
  // MPI reduces no derived types, so one call cannot take a range out of every rank's part; each range is one call.
  for (int root = 0; root < link.size; ++root) {
    in_pieces(n, link.most_per_call, [&](std::int64_t i, int count) {
      void* to = root == link.rank ? at(out, i) : nullptr;
      const void* from = root == link.rank && in_place ? MPI_IN_PLACE : at(in, root * n + i);
      check_mpi(MPI_Reduce(from, to, count, sum_type(in.dtype), sum_of(link, in.dtype), root, link.comm),
                "reduce_scatter of ", n, " x ", in.dtype);
    });
  }
}

void all_gather(Link& link, const TensorView& in, const TensorView& out, bool in_place) {
  if (link.all_in_memory && link.shared) {
    link.shared->all_gather(in, out);
    return;
  }
  const std::int64_t n = in.numel();
  const std::int64_t most = link.most_per_call / link.size;
  if (n <= most) {
    const MPI_Datatype type = move_type(in.dtype);
    const int count = static_cast<int>(n);
    check_mpi(MPI_Allgather(in_place ? MPI_IN_PLACE : in.data, count, type, out.data, count, type, link.comm),
              "all_gather of ", n, " x ", in.dtype);
    return;
  }
  in_pieces(n, std::max<std::int64_t>(most, 1), [&](std::int64_t i, int count) {
    const PieceType piece(in.dtype, count, n);
    check_mpi(MPI_Allgather(in_place ? MPI_IN_PLACE : at(in, i), 1, piece.get(), at(out, i), 1, piece.get(), link.comm),
              "all_gather of ", n, " x ", in.dtype);
  });
}

void all_to_all(const Link& link, const TensorView& in, const TensorView& out) {
  const std::int64_t n = in.numel() / link.size;
  const std::int64_t most = link.most_per_call / link.size;
  if (n <= most) {
    const MPI_Datatype type = move_type(in.dtype);
    const int count = static_cast<int>(n);
    check_mpi(MPI_Alltoall(in.data, count, type, out.data, count, type, link.comm), "all_to_all of ", n, " x ",
              in.dtype);
    return;
  }
  in_pieces(n, std::max<std::int64_t>(most, 1), [&](std::int64_t i, int count) {
    const PieceType piece(in.dtype, count, n);
    check_mpi(MPI_Alltoall(at(in, i), 1, piece.get(), at(out, i), 1, piece.get(), link.comm), "all_to_all of ", n,
              " x ", in.dtype);
  });
}

void broadcast(Link& link, const TensorView& data, int root) {
  if (link.all_in_memory && link.shared) {
    link.shared->broadcast(data, root);
    return;
  }
  in_pieces(data.numel(), link.most_per_call, [&](std::int64_t i, int n) {
    check_mpi(MPI_Bcast(at(data, i), n, move_type(data.dtype), root, link.comm), "broadcast of ", n, " x ", data.dtype);
  });
}

void send(const Link& link, const TensorView& data, int to) {
  in_pieces(data.numel(), link.most_per_call, [&](std::int64_t i, int n) {
    check_mpi(MPI_Ssend(at(data, i), n, move_type(data.dtype), to, kTag, link.comm), "send of ", n, " x ", data.dtype,
              " to rank ", to);
  });
}

void recv(const Link& link, const TensorView& data, int from) {
  in_pieces(data.numel(), link.most_per_call, [&](std::int64_t i, int n) {
    MPI_Status status;
    check_mpi(MPI_Recv(at(data, i), n, move_type(data.dtype), from, kTag, link.comm, &status), "recv of ", n, " x ",
              data.dtype, " from rank ", from);
    int came = 0;
    check_mpi(MPI_Get_count(&status, move_type(data.dtype), &came), "MPI_Get_count");
    require<MpiError>(came == n, "recv of ", n, " x ", data.dtype, " from rank ", from, ": ", came,
                      " elements came, expected ", n);
  });
}

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(std::shared_ptr<Link> link, Path path, std::optional<WorkerShare> share)
      : Communicator(link->rank, link->size), link_(std::move(link)), path_(path), share_(std::move(share)) {}

  ~MpiCommunicator() override {
    if (std::uncaught_exceptions() > uncaught_) {
      return;  // after an exception, other ranks may never free their duplicates; MPI_Finalize frees this one
    }
    try {
      if (link_->comm != MPI_COMM_NULL) {
        WorkerShare::wait_until_idle();
        int keyval = link_->keyval;
        MPI_Comm_delete_attr(MPI_COMM_SELF, keyval);  // this call makes MPI call free_link()
        MPI_Comm_free_keyval(&keyval);
      }
    } catch (...) {  // the worker has failed; MPI_Finalize frees the duplicate
    }
  }

  [[nodiscard]] std::string_view backend() const override { return "mpi"; }
  [[nodiscard]] bool can_overlap() const override { return path_ != Path::inline_only; }
  [[nodiscard]] bool any_thread() const override { return path_ == Path::any_stream; }

  void all_reduce(Stream& stream, const TensorView& data) override {
    detail::check_host("all_reduce", stream, data);
    detail::check_summable("all_reduce", data.dtype);
    run(stream, "all_reduce", data.bytes(), [data](Link& link) { comm::all_reduce(link, data); });
  }

  void reduce_scatter(Stream& stream, const TensorView& in, const TensorView& out) override {
    const bool in_place = detail::check_reduce_scatter(Device::cpu(), stream, in, out, rank(), size());
    run(stream, "reduce_scatter", in.bytes(),
        [in, out, in_place](Link& link) { comm::reduce_scatter(link, in, out, in_place); });
  }

  void all_gather(Stream& stream, const TensorView& in, const TensorView& out) override {
    const bool in_place = detail::check_all_gather(Device::cpu(), stream, in, out, rank(), size());
    run(stream, "all_gather", in.bytes(),
        [in, out, in_place](Link& link) { comm::all_gather(link, in, out, in_place); });
  }

  void all_to_all(Stream& stream, const TensorView& in, const TensorView& out) override {
    detail::check_all_to_all(Device::cpu(), stream, in, out, size());
    run(stream, "all_to_all", in.bytes(), [in, out](const Link& link) { comm::all_to_all(link, in, out); });
  }

  void broadcast(Stream& stream, const TensorView& data, int root) override {
    detail::check_host("broadcast", stream, data);
    detail::check_rank("broadcast", root, size());
    run(stream, "broadcast", data.bytes(), [data, root](Link& link) { comm::broadcast(link, data, root); });
  }

  void barrier(Stream& stream) override {
    detail::check_stream("barrier", stream);
    run(stream, "barrier", 0, [](const Link& link) { check_mpi(MPI_Barrier(link.comm), "barrier"); });
  }

  void send(Stream& stream, const TensorView& data, int to) override {
    detail::check_host("send", stream, data);
    detail::check_other_rank("send", to, rank(), size());
    run(stream, "send", data.bytes(), [data, to](const Link& link) { comm::send(link, data, to); });
  }

  void recv(Stream& stream, const TensorView& data, int from) override {
    detail::check_host("recv", stream, data);
    detail::check_other_rank("recv", from, rank(), size());
    run(stream, "recv", data.bytes(), [data, from](const Link& link) { comm::recv(link, data, from); });
  }

  [[nodiscard]] std::unique_ptr<Communicator> split(int color, int key) override {
    require<UsageError>(color >= 0, "split: color is ", color, ", expected 0 or more");
    require_alive(*link_, "split");
    enter_mpi("split");
    MPI_Comm part = MPI_COMM_NULL;
    check_mpi(MPI_Comm_split(link_->comm, color, key, &part), "split");
    return std::make_unique<MpiCommunicator>(make_link(part, link_->most_per_call, link_->asked, link_->all_in_memory),
                                             path_, share_);
  }

  [[nodiscard]] CommunicatorCounts counts() const override {
    return {.calls = link_->calls.load(std::memory_order_relaxed),
            .bytes = link_->bytes.load(std::memory_order_relaxed)};
  }

  [[nodiscard]] AllReducePath all_reduce_path() const {
    return {.shared = link_->shared.has_value(), .problem = link_->window ? link_->window->why_not() : ""};
  }

 private:
  static void require_alive(const Link& link, std::string_view op) {
    require<StateError>(link.comm != MPI_COMM_NULL, op,
                        ": the communicator was freed or MPI was finalised, expected a call before that");
  }

  template <class Call>
  static void perform(Link& link, std::string_view op, std::size_t bytes, const Call& call) {
    require_alive(link, op);
    call(link);
    link.count(bytes);
  }

  /// Prepares an MPI call in the calling thread. At thread level SERIALIZED, waits until lockstep's worker makes no MPI
  /// call; below that level, throws StateError unless the calling thread initialised MPI.
  void enter_mpi(std::string_view op) const {
    if (path_ == Path::any_stream) {
      return;
    }
    if (level_ == MPI_THREAD_SERIALIZED) {
      WorkerShare::wait_until_idle();
      return;
    }
    int is_main = 0;
    MPI_Is_thread_main(&is_main);
    require<StateError>(is_main != 0, op, ": MPI's thread level is ", name_of_level(level_),
                        ", expected a call by the thread that initialised MPI");
  }

  template <class Call>
  void run(Stream& stream, std::string_view op, std::size_t bytes, const Call& call) {
    require_alive(*link_, op);
    if (stream.is_inline()) {
      enter_mpi(op);
      // Performs the operation here. A task of the stream would copy the arguments, which slows small operations.
      perform(*link_, op, bytes, call);
      return;
    }
    require<StateError>(
        path_ != Path::inline_only, op, ": MPI's thread level is ", name_of_level(level_),
        level_ == MPI_THREAD_SERIALIZED ? " and the communicator was made without a sole_mpi_worker" : "",
        ", expected an inline stream");
    auto task = [link = link_, op, bytes, call] { perform(*link, op, bytes, call); };
    if (path_ == Path::any_stream || &stream == &share_->worker()) {
      stream.enqueue(std::move(task));
      return;
    }
    Stream& worker = share_->worker();
    stream.record(before_);
    worker.wait(before_);
    worker.enqueue(std::move(task));
    worker.record(after_);
    stream.wait(after_);
  }

  std::shared_ptr<Link> link_;
  Path path_;
  std::optional<WorkerShare> share_;  ///< set if path_ is Path::sole_worker
  int level_ = thread_level();
  Event before_{Device::cpu()};
  Event after_{Device::cpu()};
  int uncaught_ = std::uncaught_exceptions();
};

}  // namespace

namespace detail {

std::string_view name_of_level(int level) {
  switch (level) {
    case MPI_THREAD_MULTIPLE:
      return "multiple";
    case MPI_THREAD_SERIALIZED:
      return "serialized";
    case MPI_THREAD_FUNNELED:
      return "funneled";
    default:
      return "single";
  }
}

std::unique_ptr<Communicator> make_mpi_communicator(MPI_Comm parent, const MpiOptions& options,
                                                    std::int64_t most_per_call) {
  require<UsageError>(most_per_call >= 1 && most_per_call <= kMostPerCall, "mpi communicator: most_per_call is ",
                      most_per_call, ", expected 1 to ", kMostPerCall);
  const Path path = path_of_process(options.sole_mpi_worker);
  std::optional<WorkerShare> share;
  if (path == Path::sole_worker) {
    share.emplace(options.sole_mpi_worker);
  }
  WorkerShare::wait_until_idle();
  MPI_Comm own = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(parent, &own), "MPI_Comm_dup");
  return std::make_unique<MpiCommunicator>(make_link(own, most_per_call, options.all_reduce, options.all_in_memory),
                                           path, std::move(share));
}

}  // namespace detail

std::unique_ptr<Communicator> make_mpi_communicator(MPI_Comm parent, const MpiOptions& options) {
  return detail::make_mpi_communicator(parent, options, detail::kMostPerCall);
}

AllReducePath all_reduce_path(Communicator& communicator) {
  const auto* mpi = dynamic_cast<const MpiCommunicator*>(&communicator.unwrapped());
  return mpi != nullptr ? mpi->all_reduce_path() : AllReducePath{};
}

}  // namespace lockstep::comm
