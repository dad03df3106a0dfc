#include <lockstep/comm/local/local_communicator.hpp>

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include <lockstep/comm/detail/checks.hpp>
#include <lockstep/comm/detail/rank_sums.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::comm {
namespace {

/// Arguments of one rank's call of a collective.
struct Contribution {
  std::string_view op;
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  DType dtype = DType::u8;
  std::int64_t count = 0;  ///< number of elements of `in`
  int root = 0;

  [[nodiscard]] bool same_call(const Contribution& other) const {
    return op == other.op && dtype == other.dtype && count == other.count && root == other.root;
  }
};

/// A message that one rank sends to another.
struct Mail {
  enum class Impl { none, posted, copying, taken, refused };
  Impl state = Impl::none;
  const void* data = nullptr;
  DType dtype = DType::u8;
  std::int64_t count = 0;
};

struct Shared;

struct Member {
  Contribution contribution;  ///< the member's rank writes it before meet(); all ranks read it until the next meet()
  CommunicatorCounts counts;
  int color = 0;
  int key = 0;
  std::shared_ptr<Shared> child;  ///< state of a new group in split(), if this member is the group's first rank
  bool taken = false;
  bool gone = false;
  bool arrived = false;
};

struct Shared {
  explicit Shared(int n)
      : size(n),
        members(static_cast<std::size_t>(n)),
        mail(static_cast<std::size_t>(n) * static_cast<std::size_t>(n)) {}

  Member& member(int rank) { return members[static_cast<std::size_t>(rank)]; }
  Mail& between(int from, int to) {
    return mail[static_cast<std::size_t>(from) * static_cast<std::size_t>(size) + static_cast<std::size_t>(to)];
  }

  void take(int rank) {
    const std::lock_guard lock(mutex);
    require<StateError>(!member(rank).taken, "LocalGroup: the communicator of rank ", rank,
                        " was taken before, expected it to be taken once");
    member(rank).taken = true;
  }

  void leave(int rank) {
    const std::lock_guard lock(mutex);
    member(rank).gone = true;
    changed.notify_all();
  }

  /// Waits until all ranks have called meet(). After that, all ranks see what any rank wrote before its call.
  void meet(int rank, std::string_view op) {
    std::unique_lock lock(mutex);
    const std::uint64_t mine = generation;
    member(rank).arrived = true;
    if (++arrived == size) {
      arrived = 0;
      for (Member& m : members) {
        m.arrived = false;
      }
      ++generation;
      changed.notify_all();
      return;
    }
    while (generation == mine) {
      if (member(rank).gone) {
        broken_by = broken_by < 0 ? rank : broken_by;
        changed.notify_all();
        throw StateError(concat(op, ": the communicator of rank ", rank,
                                " was destroyed while the operation waited, expected it to live until then"));
      }
      for (int r = 0; broken_by < 0 && r < size; ++r) {
        if (member(r).gone && !member(r).arrived) {
          broken_by = r;
          changed.notify_all();
        }
      }
      if (broken_by >= 0) {
        throw PeerError(concat(op, ": rank ", broken_by, " left the group while rank ", rank,
                               " waited for it, expected all ranks until the end"));
      }
      changed.wait(lock);
    }
  }

  template <class Body>
  void collective(int rank, const Contribution& mine, Body&& body) {
    member(rank).contribution = mine;
    meet(rank, mine.op);
    int odd = 0;  // lowest rank whose call differs from rank 0's call (every rank finds it); 0: none
    for (int r = 1; r < size && odd == 0; ++r) {
      odd = member(r).contribution.same_call(member(0).contribution) ? 0 : r;
    }
    if (odd == 0) {
      body();
      meet(rank, mine.op);
    } else {
      const Contribution a = member(0).contribution;
      const Contribution b = member(odd).contribution;
      meet(rank, mine.op);
      throw StateError(concat("rank 0 called ", a.op, " of ", a.count, " x ", a.dtype, ", root ", a.root, "; rank ",
                              odd, " called ", b.op, " of ", b.count, " x ", b.dtype, ", root ", b.root,
                              "; expected the same call on all ranks"));
    }
    count(rank, static_cast<std::int64_t>(size_of(mine.dtype)) * mine.count);
  }

  void send(int rank, int to, const TensorView& data) {
    std::unique_lock lock(mutex);
    Mail& letter = between(rank, to);
    letter.data = data.data;
    letter.dtype = data.dtype;
    letter.count = data.numel();
    letter.state = Mail::Impl::posted;
    changed.notify_all();
    changed.wait(lock, [&] {
      return letter.state == Mail::Impl::taken || letter.state == Mail::Impl::refused ||
             (letter.state == Mail::Impl::posted && (member(to).gone || member(rank).gone));
    });
    const Mail::Impl end = std::exchange(letter.state, Mail::Impl::none);
    require<PeerError>(end != Mail::Impl::posted, "send: rank ", to, " left before it took the message of rank ", rank,
                       ", expected its recv before");
    require<ShapeError>(end == Mail::Impl::taken, "send: rank ", to, " does not expect ", data.numel(), " x ",
                        data.dtype, ", expected the tensor of its recv");
    lock.unlock();
    count(rank, static_cast<std::int64_t>(data.bytes()));
  }

  void recv(int rank, int from, const TensorView& data) {
    std::unique_lock lock(mutex);
    Mail& letter = between(from, rank);
    changed.wait(lock, [&] { return letter.state == Mail::Impl::posted || member(from).gone || member(rank).gone; });
    require<PeerError>(letter.state == Mail::Impl::posted, "recv: rank ", from, " left before it sent to rank ", rank,
                       ", expected its send before");
    if (letter.count != data.numel() || letter.dtype != data.dtype) {
      const Mail came = letter;
      letter.state = Mail::Impl::refused;
      changed.notify_all();
      throw ShapeError(concat("recv: rank ", from, " sent ", came.count, " x ", came.dtype, ", expected ", data.numel(),
                              " x ", data.dtype));
    }
    // While the state is `copying`, the sender waits, so the sender's memory stays alive until the copy is complete.
    letter.state = Mail::Impl::copying;
    lock.unlock();
    if (data.bytes() > 0) {
      std::memcpy(data.data, letter.data, data.bytes());
    }
    lock.lock();
    letter.state = Mail::Impl::taken;
    changed.notify_all();
    lock.unlock();
    count(rank, static_cast<std::int64_t>(data.bytes()));
  }

  void count(int rank, std::int64_t bytes) {
    const std::lock_guard lock(mutex);
    CommunicatorCounts& counts = member(rank).counts;
    ++counts.calls;
    counts.bytes += bytes;
  }

  /// Computes s[i] = in_0[offset + i] + in_1[offset + i] + .. (one summand of each rank) for begin <= i < end. Calls
  /// store(i, values, n) with s[i] to s[i + n - 1] in `values`, until all sums are stored.
  template <class T, class Store>
  void sum(std::int64_t offset, std::int64_t begin, std::int64_t end, Store&& store) {
    const auto at = [&](int r) { return reinterpret_cast<const T*>(member(r).contribution.in) + offset + begin; };
    detail::sum_over_ranks<T>(size, end - begin, at,
                              [&](std::int64_t i, const T* values, std::int64_t n) { store(begin + i, values, n); });
  }

  std::mutex mutex;
  std::condition_variable changed;
  const int size;
  int arrived = 0;
  int broken_by = -1;  ///< rank whose absence ended all collectives; -1 if none
  std::uint64_t generation = 0;
  std::vector<Member> members;
  std::vector<Mail> mail;  // one message for each pair (sender, receiver)
};

void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) {
    std::memcpy(to, from, bytes);
  }
}

/// One rank's communicator. Queued operations own the shared state, not this object, because they may outlive it.
class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator(std::shared_ptr<Shared> shared, int rank)
      : Communicator(rank, shared->size), shared_(std::move(shared)) {
    shared_->take(rank);
  }
  ~LocalCommunicator() override { shared_->leave(rank()); }

  [[nodiscard]] std::string_view backend() const override { return "local"; }
  [[nodiscard]] bool can_overlap() const override { return true; }

  [[nodiscard]] bool can_be_captured() const override { return size() == 1; }

  void all_reduce(Stream& stream, const TensorView& data) override {
    detail::check_summable("all_reduce", data.dtype);
    if (alone_on_gpu("all_reduce", stream, data)) {
      return;
    }
    detail::check_host("all_reduce", stream, data);
    stream.enqueue([shared = shared_, me = rank(), data] {
      // Each rank sums one slice of the tensors and writes the sums to the tensors of all ranks. Meanwhile no other
      // rank touches that slice.
      shared->collective(me, contribution("all_reduce", data, data), [&] {
        const std::int64_t n = data.numel();
        detail::visit_sum(data.dtype, [&](auto type) {
          using T = typename decltype(type)::type;
          shared->sum<T>(0, n * me / shared->size, n * (me + 1) / shared->size,
                         [&](std::int64_t i, const T* values, std::int64_t count) {
                           for (Member& m : shared->members) {
                             std::copy_n(values, count, reinterpret_cast<T*>(m.contribution.out) + i);
                           }
                         });
        });
      });
    });
  }

  void reduce_scatter(Stream& stream, const TensorView& in, const TensorView& out) override {
    // If `out` is a part of `in`, no other rank reads that part, and this rank reads it before writing the sums there.
    detail::check_reduce_scatter(Device::cpu(), stream, in, out, rank(), size());
    stream.enqueue([shared = shared_, me = rank(), in, out] {
      shared->collective(me, contribution("reduce_scatter", in, out), [&] {
        detail::visit_sum(in.dtype, [&](auto type) {
          using T = typename decltype(type)::type;
          T* to = static_cast<T*>(out.data);  // out.numel() elements
          shared->sum<T>(me * out.numel(), 0, out.numel(), [&](std::int64_t i, const T* values, std::int64_t count) {
            std::copy_n(values, count, to + i);
          });
        });
      });
    });
  }

  void all_gather(Stream& stream, const TensorView& in, const TensorView& out) override {
    const bool in_place = detail::check_all_gather(Device::cpu(), stream, in, out, rank(), size());
    stream.enqueue([shared = shared_, me = rank(), in, out, in_place] {
      shared->collective(me, contribution("all_gather", in, out), [&] {
        for (int r = 0; r < shared->size; ++r) {
          if (r != me || !in_place) {
            copy_bytes(static_cast<std::byte*>(out.data) + static_cast<std::size_t>(r) * in.bytes(),
                       shared->member(r).contribution.in, in.bytes());
          }
        }
      });
    });
  }

  void all_to_all(Stream& stream, const TensorView& in, const TensorView& out) override {
    detail::check_all_to_all(Device::cpu(), stream, in, out, size());
    stream.enqueue([shared = shared_, me = rank(), in, out] {
      shared->collective(me, contribution("all_to_all", in, out), [&] {
        const std::size_t part = in.bytes() / static_cast<std::size_t>(shared->size);
        for (int r = 0; r < shared->size; ++r) {
          copy_bytes(static_cast<std::byte*>(out.data) + static_cast<std::size_t>(r) * part,
                     shared->member(r).contribution.in + static_cast<std::size_t>(me) * part, part);
        }
      });
    });
  }

  void broadcast(Stream& stream, const TensorView& data, int root) override {
    detail::check_rank("broadcast", root, size());
    if (alone_on_gpu("broadcast", stream, data)) {
      return;
    }
    detail::check_host("broadcast", stream, data);
    stream.enqueue([shared = shared_, me = rank(), data, root] {
      Contribution mine = contribution("broadcast", data, data);
      mine.root = root;
      shared->collective(me, mine, [&] {
        if (me != root) {
          copy_bytes(data.data, shared->member(root).contribution.in, data.bytes());
        }
      });
    });
  }

  void barrier(Stream& stream) override {
    detail::check_stream("barrier", stream);
    stream.enqueue([shared = shared_, me = rank()] {
      Contribution mine;
      mine.op = "barrier";
      shared->collective(me, mine, [] {});
    });
  }

  void send(Stream& stream, const TensorView& data, int to) override {
    detail::check_host("send", stream, data);
    detail::check_other_rank("send", to, rank(), size());
    stream.enqueue([shared = shared_, me = rank(), data, to] { shared->send(me, to, data); });
  }

  void recv(Stream& stream, const TensorView& data, int from) override {
    detail::check_host("recv", stream, data);
    detail::check_other_rank("recv", from, rank(), size());
    stream.enqueue([shared = shared_, me = rank(), data, from] { shared->recv(me, from, data); });
  }

  [[nodiscard]] std::unique_ptr<Communicator> split(int color, int key) override {
    require<UsageError>(color >= 0, "split: color is ", color, ", expected 0 or more");
    Member& mine = shared_->member(rank());
    mine.color = color;
    mine.key = key;
    shared_->meet(rank(), "split");
    std::vector<int> group;
    for (int r = 0; r < size(); ++r) {
      if (shared_->member(r).color == color) {
        group.push_back(r);
      }
    }
    std::stable_sort(group.begin(), group.end(),
                     [&](int a, int b) { return shared_->member(a).key < shared_->member(b).key; });
    if (group.front() == rank()) {
      mine.child = std::make_shared<Shared>(static_cast<int>(group.size()));
    }
    shared_->meet(rank(), "split");
    const auto place = std::find(group.begin(), group.end(), rank()) - group.begin();
    auto child = std::make_unique<LocalCommunicator>(shared_->member(group.front()).child, static_cast<int>(place));
    shared_->meet(rank(), "split");
    mine.child.reset();
    return child;
  }

  [[nodiscard]] CommunicatorCounts counts() const override {
    const std::lock_guard lock(shared_->mutex);
    return shared_->member(rank()).counts;
  }

 private:
  /// Returns true if the group has one rank and `view` is on a GPU. Then all-reduce and broadcast do nothing.
  [[nodiscard]] bool alone_on_gpu(std::string_view op, const Stream& stream, const TensorView& view) const {
    if (size() > 1 || view.device.kind != DeviceKind::cuda) {
      return false;
    }
    require<DeviceError>(stream.device() == view.device, op, ": stream is on ", stream.device(), ", expected ",
                         view.device);
    return true;
  }

  static Contribution contribution(std::string_view op, const TensorView& in, const TensorView& out) {
    return {op, static_cast<const std::byte*>(in.data), static_cast<std::byte*>(out.data), in.dtype, in.numel(), 0};
  }

  std::shared_ptr<Shared> shared_;
};

}  // namespace

struct LocalGroup::Impl {
  std::shared_ptr<Shared> shared;
};

LocalGroup::LocalGroup(int size) {
  require<UsageError>(size >= 1, "LocalGroup: size is ", size, ", expected 1 or more");
  impl_ = std::make_shared<Impl>(Impl{std::make_shared<Shared>(size)});
}

LocalGroup::~LocalGroup() {
  // A rank whose communicator nobody has taken can never call a collective, so it counts as gone; nobody waits for it.
  Shared& shared = *impl_->shared;
  const std::lock_guard lock(shared.mutex);
  for (Member& member : shared.members) {
    member.gone = member.gone || !member.taken;
  }
  shared.changed.notify_all();
}

std::unique_ptr<Communicator> LocalGroup::communicator(int rank) {
  detail::check_rank("LocalGroup", rank, impl_->shared->size);
  return std::make_unique<LocalCommunicator>(impl_->shared, rank);
}

}  // namespace lockstep::comm
