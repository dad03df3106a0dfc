#include <lockstep/comm/gloo/gloo_communicator.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <ctime>
#include <exception>
#include <functional>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gloo/context.h>
#include <gloo/transport/address.h>
#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/attr.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <lockstep/comm/detail/checks.hpp>
#include <lockstep/comm/detail/rank_sums.hpp>
#include <lockstep/comm/error.hpp>
#include <lockstep/comm/gloo/detail/gloo_internal.hpp>
#include <lockstep/comm/gloo/detail/tcp.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::comm {
namespace {

using GlooDevice = std::shared_ptr<::gloo::transport::Device>;
using Buffer = ::gloo::transport::UnboundBuffer;

/// Time limit of a wait for another rank, which may compute or write files for hours before it calls the operation.
constexpr std::chrono::hours kForEver{24 * 365};
/// Time limit that gloo gets for connecting two ranks. gloo itself waits up to five times this limit for a connection.
constexpr std::chrono::seconds kConnect{6};
constexpr double kToLearnWhoS = 2;

/// Blocks SIGPIPE in the constructing thread until the destructor. gloo writes to sockets with a plain write(). With
/// SIGPIPE blocked, write() on a broken connection returns an error and does not end the process.
class NoSigpipe {
 public:
  NoSigpipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    ::pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoSigpipe() {
    const timespec now{};
    if (!was_pending_) {
      while (::sigtimedwait(&pipe_, nullptr, &now) == SIGPIPE) {
      }
    }
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;

 private:
  sigset_t pipe_{};
  sigset_t before_{};
  bool was_pending_ = false;
};

using ExchangeAddresses = std::function<std::vector<std::string>(const std::string& mine)>;

/// A gloo context with a connection between every two ranks. Needs no key-value store, unlike
/// gloo::rendezvous::Context.
class Mesh final : public ::gloo::Context {
 public:
  /// Connects the ranks. Collective. `exchange` sends a text to all ranks and returns all ranks' texts, in rank order.
  Mesh(int own_rank, int ranks, const GlooDevice& device, const ExchangeAddresses& exchange)
      : ::gloo::Context(own_rank, ranks) {
    device_ = device;
    transportContext_ = device_->createContext(rank, size);
    transportContext_->setTimeout(kConnect);
    std::string mine;  // this rank's addresses, one for each other rank, each of address_bytes_ bytes
    for (int r = 0; r < size; ++r) {
      if (r != rank) {
        const std::vector<char> address = transportContext_->createPair(r)->address().bytes();
        address_bytes_ = address.size();
        mine.append(address.begin(), address.end());
      }
    }
    const std::vector<std::string> all = exchange(mine);
    for (int r = 0; r < size; ++r) {
      if (r != rank) {
        const std::size_t place = static_cast<std::size_t>(rank < r ? rank : rank - 1) * address_bytes_;
        const std::string& theirs = all.at(static_cast<std::size_t>(r));
        require<PeerError>(theirs.size() >= place + address_bytes_, "gloo communicator: rank ", r, " sent ",
                           theirs.size(), " bytes of addresses, expected at least ", place + address_bytes_);
        const auto begin = theirs.begin() + static_cast<std::ptrdiff_t>(place);
        transportContext_->getPair(r)->connect(
            std::vector<char>(begin, begin + static_cast<std::ptrdiff_t>(address_bytes_)));
      }
    }
  }

 private:
  std::size_t address_bytes_ = 0;
};

/// Kinds of messages. gloo matches a send and a receive by a number, the slot; slot_of() packs kind, type and number of
/// elements into this number. So ranks that call different operations wait for each other and never receive each
/// other's bytes.
enum class Kind : std::uint64_t {
  reduce = 1,
  gather_sums,
  all_gather,
  all_to_all,
  broadcast,
  barrier,
  message_head,
  message_result,
  message,
};

std::uint64_t slot_of(Kind kind, DType dtype, std::int64_t elements) {
  constexpr std::uint64_t kElements = (std::uint64_t{1} << 48) - 1;
  return static_cast<std::uint64_t>(kind) << 56 | static_cast<std::uint64_t>(dtype) << 48 |
         (static_cast<std::uint64_t>(elements) & kElements);
}

/// State of one communicator, shared by the Communicator and the queued operations.
class Link {
 public:
  Link(std::shared_ptr<Rendezvous> rendezvous, int own_rank, int ranks, GlooDevice device,
       const detail::GlooPieces& how, const ExchangeAddresses& exchange)
      : rank(own_rank), size(ranks), pieces(how), rendezvous_(std::move(rendezvous)), device_(std::move(device)) {
    if (size > 1) {
      mesh_ = std::make_shared<Mesh>(rank, size, device_, exchange);
    }
    key_ = rendezvous_->when_lost([this] { abort_waits(); });
  }
  ~Link() { rendezvous_->forget(key_); }
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  const int rank;
  const int size;
  const detail::GlooPieces pieces;

  [[nodiscard]] const std::shared_ptr<Rendezvous>& rendezvous() const { return rendezvous_; }
  [[nodiscard]] const GlooDevice& device() const { return device_; }

  /// Makes a gloo buffer of the `bytes` bytes at `data`, and registers the buffer. If a rank is lost, all waits for
  /// registered buffers end. Without this, gloo would wait for ever if a connection breaks in the middle of a message.
  [[nodiscard]] std::unique_ptr<Buffer> open(void* data, std::size_t bytes) {
    std::unique_ptr<Buffer> buffer = mesh_->createUnboundBuffer(data, bytes);
    const std::lock_guard lock(mutex_);
    require<PeerError>(!broken_, "a rank was lost, or an operation failed before, expected no further operation");
    open_.push_back(buffer.get());
    return buffer;
  }
  void close(const Buffer* buffer) noexcept {
    const std::lock_guard lock(mutex_);
    std::erase(open_, buffer);
  }

  /// Runs call(*this), which communicates, and converts an exception of gloo to a PeerError.
  template <class Call>
  void guard(std::string_view op, const Call& call) {
    try {
      const NoSigpipe no_sigpipe;
      call(*this);
    } catch (const ShapeError&) {  // message sizes differ between two ranks; the communicator stays usable
      throw;
    } catch (const std::bad_alloc&) {
      abort_waits();
      throw;
    } catch (const std::exception& e) {
      abort_waits();
      const std::string who = rendezvous_->why_lost(kToLearnWhoS);
      throw PeerError(concat(op, ": ", who.empty() ? e.what() : who));
    }
  }

  /// Runs the operation `call` with guard(), then counts the operation and its bytes.
  template <class Call>
  void perform(std::string_view op, std::size_t bytes, const Call& call) {
    guard(op, call);
    calls_.store(calls_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    bytes_.store(bytes_.load(std::memory_order_relaxed) + static_cast<std::int64_t>(bytes), std::memory_order_relaxed);
  }

  [[nodiscard]] CommunicatorCounts counts() const {
    return {.calls = calls_.load(std::memory_order_relaxed), .bytes = bytes_.load(std::memory_order_relaxed)};
  }

  /// Returns a buffer of at least `bytes` bytes, valid until the next call of scratch().
  [[nodiscard]] std::byte* scratch(std::size_t bytes) {
    if (scratch_.size() < bytes) {
      scratch_.resize(bytes);
    }
    return scratch_.data();
  }

 private:
  void abort_waits() noexcept {
    const std::lock_guard lock(mutex_);
    broken_ = true;
    for (Buffer* buffer : open_) {
      buffer->abortWaitRecv();
      buffer->abortWaitSend();
    }
  }

  std::shared_ptr<Rendezvous> rendezvous_;
  GlooDevice device_;
  std::shared_ptr<Mesh> mesh_;  ///< connections to the other ranks; nullptr if there is only one rank
  std::vector<std::byte> scratch_;
  std::mutex mutex_;
  std::vector<Buffer*> open_;  ///< buffers in use; guarded by mutex_
  bool broken_ = false;        ///< true after a rank was lost or an operation failed; guarded by mutex_
  std::uint64_t key_ = 0;
  // Operations of a communicator never run at the same time, so only one thread writes these counts. Other threads
  // may read them.
  std::atomic<std::int64_t> calls_ = 0;
  std::atomic<std::int64_t> bytes_ = 0;
};

/// Memory whose parts are sent to other ranks or received from them. Counts the sends and receives under way. The
/// destructor does not wait for their completion; afterwards, gloo does not touch the memory.
class Transfer {
 public:
  Transfer(Link& link, void* data, std::size_t bytes) : link_(link), buffer_(link.open(data, bytes)) {}
  ~Transfer() { link_.close(buffer_.get()); }
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  void send(int to, std::uint64_t slot, std::int64_t offset, std::int64_t bytes) {
    buffer_->send(to, slot, static_cast<std::size_t>(offset), static_cast<std::size_t>(bytes));
    ++sends_;
  }
  void recv(int from, std::uint64_t slot, std::int64_t offset, std::int64_t bytes) {
    buffer_->recv(from, slot, static_cast<std::size_t>(offset), static_cast<std::size_t>(bytes));
    ++recvs_;
  }
  /// Waits until `count` more receives are complete. Receives from one rank complete in the order of recv() calls.
  void wait_received(std::int64_t count) {
    for (; count > 0; --count, --recvs_) {
      require<PeerError>(buffer_->waitRecv(kForEver), "a rank was lost, expected all ranks until the end");
    }
  }
  void wait_all() {
    wait_received(recvs_);
    for (; sends_ > 0; --sends_) {
      require<PeerError>(buffer_->waitSend(kForEver), "a rank was lost, expected all ranks until the end");
    }
  }

 private:
  Link& link_;
  std::unique_ptr<Buffer> buffer_;
  std::int64_t sends_ = 0;
  std::int64_t recvs_ = 0;
};

std::byte* at(const TensorView& view, std::int64_t element) {
  return static_cast<std::byte*>(view.data) + element * static_cast<std::int64_t>(size_of(view.dtype));
}

void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0 && to != from) {
    std::memmove(to, from, bytes);
  }
}

/// Elements [begin, end) of a tensor.
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  [[nodiscard]] std::int64_t count() const { return end - begin; }
};

/// Calls f(begin, end) for each block of `range`. All blocks have `block` elements; only the last one may be shorter.
template <class F>
void for_blocks(const Range& range, std::int64_t block, F&& f) {
  for (std::int64_t i = range.begin; i < range.end; i += block) {
    f(i, std::min(range.end, i + block));
  }
}

/// Sums part number link.rank of `elements` over the ranks, and sends part r to each other rank r. `parts` are the
/// ranges of all parts, and `data` is the memory of `elements`. Passes the sums in blocks to store(begin, sums, count),
/// where `begin` counts from the part's start. `store` may write to part number link.rank.
template <class T, class Store>
void reduce_parts(Link& link, Transfer& data, T* elements, const std::vector<Range>& parts, std::uint64_t slot,
                  Store&& store) {
  constexpr std::int64_t kWidth = sizeof(T);
  const int me = link.rank;
  const int others = link.size - 1;
  // With more than 16 ranks the blocks get smaller, to limit the scratch memory.
  const std::int64_t block =
      std::max<std::int64_t>(1, std::min(link.pieces.block_bytes, 16 * link.pieces.block_bytes / link.size) / kWidth);
  for (int i = 1; i < link.size; ++i) {
    const int r = (me + i) % link.size;
    for_blocks(parts[static_cast<std::size_t>(r)], block, [&](std::int64_t begin, std::int64_t end) {
      data.send(r, slot, begin * kWidth, (end - begin) * kWidth);
    });
  }
  // Room for two blocks from each other rank: one block arrives while the other is summed.
  const Range mine = parts[static_cast<std::size_t>(me)];
  const std::int64_t room = std::min(block, std::max<std::int64_t>(mine.count(), 1)) * kWidth;
  std::byte* memory = link.scratch(static_cast<std::size_t>(2 * others * room));
  Transfer first(link, memory, static_cast<std::size_t>(others * room));
  Transfer second(link, memory + others * room, static_cast<std::size_t>(others * room));
  const std::array<Transfer*, 2> arrivals{&first, &second};
  const auto place = [&](int r) { return std::int64_t{r < me ? r : r - 1} * room; };
  const auto expect = [&](std::int64_t begin) {
    const std::int64_t bytes = std::min(block, mine.end - begin) * kWidth;
    Transfer& to = *arrivals[static_cast<std::size_t>((begin - mine.begin) / block % 2)];
    for (int r = 0; r < link.size && bytes > 0; ++r) {
      if (r != me) {
        to.recv(r, slot, place(r), bytes);
      }
    }
  };
  expect(mine.begin);
  expect(std::min(mine.end, mine.begin + block));
  for_blocks(mine, block, [&](std::int64_t begin, std::int64_t end) {
    const std::size_t parity = static_cast<std::size_t>((begin - mine.begin) / block % 2);
    arrivals[parity]->wait_received(others);
    const std::byte* from = memory + static_cast<std::int64_t>(parity) * others * room;
    detail::sum_over_ranks<T>(
        link.size, end - begin,
        [&](int r) { return r == me ? elements + begin : reinterpret_cast<const T*>(from + place(r)); },
        [&](std::int64_t i, const T* sums, std::int64_t n) { store(begin - mine.begin + i, sums, n); });
    if (begin + 2 * block < mine.end) {
      expect(begin + 2 * block);
    }
  });
}

/// Calls f(begin, end) for each segment (at most segment_bytes) of n elements that have `width` bytes each.
template <class F>
void in_segments(const Link& link, std::int64_t n, std::int64_t width, F&& f) {
  for_blocks({0, n}, std::max<std::int64_t>(1, link.pieces.segment_bytes / width), f);
}

void all_reduce(Link& link, const TensorView& data) {
  if (link.size == 1) {
    return;
  }
  detail::visit_sum(data.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    constexpr std::int64_t kWidth = sizeof(T);
    in_segments(link, data.numel(), kWidth, [&](std::int64_t from, std::int64_t to) {
      const std::int64_t n = to - from;
      T* elements = static_cast<T*>(data.data) + from;  // the n elements of this segment
      std::vector<Range> parts;
      for (std::int64_t r = 0; r < link.size; ++r) {
        parts.push_back({n * r / link.size, n * (r + 1) / link.size});
      }
      const std::int64_t block = std::max<std::int64_t>(1, link.pieces.block_bytes / kWidth);
      const std::uint64_t sums = slot_of(Kind::gather_sums, data.dtype, n);
      Transfer moved(link, elements, static_cast<std::size_t>(n * kWidth));
      // Receives of the other ranks' sums may overwrite `elements` from now on. A rank sends the sums of its part only
      // after it has received this rank's elements of that part, so no element is overwritten before it is sent.
      for (int r = 0; r < link.size; ++r) {
        for_blocks(
            r == link.rank ? Range{} : parts[static_cast<std::size_t>(r)], block,
            [&](std::int64_t begin, std::int64_t end) { moved.recv(r, sums, begin * kWidth, (end - begin) * kWidth); });
      }
      const Range mine = parts[static_cast<std::size_t>(link.rank)];
      std::int64_t sent = mine.begin;
      reduce_parts<T>(link, moved, elements, parts, slot_of(Kind::reduce, data.dtype, n),
                      [&](std::int64_t i, const T* values, std::int64_t count) {
                        std::copy_n(values, count, elements + mine.begin + i);
                        const std::int64_t done = mine.begin + i + count;
                        while (sent < done && (done >= std::min(mine.end, sent + block))) {
                          const std::int64_t end = std::min(mine.end, sent + block);
                          for (int k = 1; k < link.size; ++k) {
                            moved.send((link.rank + k) % link.size, sums, sent * kWidth, (end - sent) * kWidth);
                          }
                          sent = end;
                        }
                      });
      moved.wait_all();
    });
  });
}

void reduce_scatter(Link& link, const TensorView& in, const TensorView& out) {
  const std::int64_t n = out.numel();
  if (link.size == 1) {
    copy_bytes(out.data, in.data, out.bytes());
    return;
  }
  detail::visit_sum(in.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    T* elements = static_cast<T*>(in.data);  // `size` parts of n elements each
    in_segments(link, n, std::int64_t{sizeof(T)} * link.size, [&](std::int64_t from, std::int64_t to) {
      std::vector<Range> parts;
      for (std::int64_t r = 0; r < link.size; ++r) {
        parts.push_back({r * n + from, r * n + to});
      }
      Transfer moved(link, elements, in.bytes());
      reduce_parts<T>(link, moved, elements, parts, slot_of(Kind::reduce, in.dtype, n),
                      [&](std::int64_t i, const T* values, std::int64_t count) {
                        std::copy_n(values, count, static_cast<T*>(out.data) + from + i);
                      });
      moved.wait_all();
    });
  });
}

void all_gather(Link& link, const TensorView& in, const TensorView& out) {
  const std::int64_t n = in.numel();
  copy_bytes(at(out, link.rank * n), in.data, in.bytes());
  if (link.size == 1 || n == 0) {
    return;
  }
  const auto bytes = static_cast<std::int64_t>(in.bytes());
  const std::uint64_t slot = slot_of(Kind::all_gather, in.dtype, n);
  Transfer moved(link, out.data, out.bytes());
  for (int i = 1; i < link.size; ++i) {
    const int from = (link.rank + link.size - i) % link.size;
    moved.recv(from, slot, from * bytes, bytes);
    moved.send((link.rank + i) % link.size, slot, link.rank * bytes, bytes);
  }
  moved.wait_all();
}

void all_to_all(Link& link, const TensorView& in, const TensorView& out) {
  const std::int64_t n = in.numel() / link.size;
  const std::int64_t bytes = n * static_cast<std::int64_t>(size_of(in.dtype));
  copy_bytes(at(out, link.rank * n), at(in, link.rank * n), static_cast<std::size_t>(bytes));
  if (link.size == 1 || n == 0) {
    return;
  }
  const std::uint64_t slot = slot_of(Kind::all_to_all, in.dtype, n);
  Transfer sent(link, in.data, in.bytes());
  Transfer received(link, out.data, out.bytes());
  for (int i = 1; i < link.size; ++i) {
    const int to = (link.rank + i) % link.size;
    const int from = (link.rank + link.size - i) % link.size;
    received.recv(from, slot, from * bytes, bytes);
    sent.send(to, slot, to * bytes, bytes);
  }
  received.wait_all();
  sent.wait_all();
}

/// Sends `data` down a binomial tree of ranks. Each rank forwards `data` to its children block by block.
void broadcast(Link& link, const TensorView& data, int root) {
  if (link.size == 1) {
    return;
  }
  const int place = (link.rank - root + link.size) % link.size;  // place of this rank in the tree; the root has place 0
  const auto rank_at = [&](int p) { return (p + root) % link.size; };
  const int parent = place & (place - 1);
  std::vector<int> children;
  for (int step = 1; (place & step) == 0 && step < link.size; step *= 2) {
    if (place + step < link.size) {
      children.insert(children.begin(), rank_at(place + step));  // puts the child with the largest subtree first
    }
  }
  const auto width = static_cast<std::int64_t>(size_of(data.dtype));
  const std::int64_t block = std::max<std::int64_t>(1, link.pieces.block_bytes / width);
  in_segments(link, data.numel(), width, [&](std::int64_t from, std::int64_t to) {
    const std::uint64_t slot = slot_of(Kind::broadcast, data.dtype, to - from);
    Transfer moved(link, at(data, from), static_cast<std::size_t>((to - from) * width));
    const Range all{0, to - from};
    for_blocks(place == 0 ? Range{} : all, block, [&](std::int64_t begin, std::int64_t end) {
      moved.recv(rank_at(parent), slot, begin * width, (end - begin) * width);
    });
    for_blocks(all, block, [&](std::int64_t begin, std::int64_t end) {
      moved.wait_received(place == 0 ? 0 : 1);
      for (const int child : children) {
        moved.send(child, slot, begin * width, (end - begin) * width);
      }
    });
    moved.wait_all();
  });
}

/// Runs a dissemination barrier: in round k, a rank waits for a message from the rank 2^k places before it. After round
/// k, this rank knows that the 2^(k+1) - 1 ranks before it have called barrier(), too (Hensgen, Finkel and Manber
/// 1988).
void barrier(Link& link) {
  if (link.size == 1) {
    return;
  }
  Transfer nothing(link, nullptr, 0);
  for (int step = 1; step < link.size; step *= 2) {
    const std::uint64_t slot = slot_of(Kind::barrier, DType::u8, step);
    nothing.recv((link.rank + link.size - step) % link.size, slot, 0, 0);
    nothing.send((link.rank + step) % link.size, slot, 0, 0);
    nothing.wait_all();
  }
}

/// Number and type of elements that a sender announces. The receiver answers whether it expects such a message.
struct MessageHead {
  std::int64_t count = 0;
  std::int64_t dtype = 0;
};

template <class T>
void send_value(Link& link, int to, Kind kind, T value) {
  Transfer moved(link, &value, sizeof value);
  moved.send(to, slot_of(kind, DType::u8, 0), 0, sizeof value);
  moved.wait_all();
}

template <class T>
T recv_value(Link& link, int from, Kind kind) {
  T value{};
  Transfer moved(link, &value, sizeof value);
  moved.recv(from, slot_of(kind, DType::u8, 0), 0, sizeof value);
  moved.wait_all();
  return value;
}

void send(Link& link, const TensorView& data, int to) {
  send_value(link, to, Kind::message_head, MessageHead{data.numel(), static_cast<std::int64_t>(data.dtype)});
  const bool expected = recv_value<std::int64_t>(link, to, Kind::message_result) == 1;
  require<ShapeError>(expected, "send: rank ", to, " does not expect ", data.numel(), " x ", data.dtype,
                      ", expected the tensor of its recv");
  Transfer moved(link, data.data, data.bytes());
  moved.send(to, slot_of(Kind::message, data.dtype, data.numel()), 0, static_cast<std::int64_t>(data.bytes()));
  moved.wait_all();
}

void recv(Link& link, const TensorView& data, int from) {
  const auto head = recv_value<MessageHead>(link, from, Kind::message_head);
  const bool expected = head.count == data.numel() && head.dtype == static_cast<std::int64_t>(data.dtype);
  send_value(link, from, Kind::message_result, std::int64_t{expected ? 1 : 0});
  require<ShapeError>(expected, "recv: rank ", from, " sent ", head.count, " x ", static_cast<DType>(head.dtype),
                      ", expected ", data.numel(), " x ", data.dtype);
  Transfer moved(link, data.data, data.bytes());
  moved.recv(from, slot_of(Kind::message, data.dtype, data.numel()), 0, static_cast<std::int64_t>(data.bytes()));
  moved.wait_all();
}

class GlooCommunicator final : public Communicator {
 public:
  explicit GlooCommunicator(std::shared_ptr<Link> link)
      : Communicator(link->rank, link->size), link_(std::move(link)) {}

  [[nodiscard]] std::string_view backend() const override { return "gloo"; }
  [[nodiscard]] bool can_overlap() const override { return true; }

  void all_reduce(Stream& stream, const TensorView& data) override {
    detail::check_host("all_reduce", stream, data);
    detail::check_summable("all_reduce", data.dtype);
    run(stream, "all_reduce", data.bytes(), [data](Link& link) { comm::all_reduce(link, data); });
  }

  void reduce_scatter(Stream& stream, const TensorView& in, const TensorView& out) override {
    // `out` may be a part of `in`: this rank overwrites only the part of `in` that it does not send to other ranks.
    detail::check_reduce_scatter(Device::cpu(), stream, in, out, rank(), size());
    run(stream, "reduce_scatter", in.bytes(), [in, out](Link& link) { comm::reduce_scatter(link, in, out); });
  }

  void all_gather(Stream& stream, const TensorView& in, const TensorView& out) override {
    detail::check_all_gather(Device::cpu(), stream, in, out, rank(), size());
    run(stream, "all_gather", in.bytes(), [in, out](Link& link) { comm::all_gather(link, in, out); });
  }

  void all_to_all(Stream& stream, const TensorView& in, const TensorView& out) override {
    detail::check_all_to_all(Device::cpu(), stream, in, out, size());
    run(stream, "all_to_all", in.bytes(), [in, out](Link& link) { comm::all_to_all(link, in, out); });
  }

  void broadcast(Stream& stream, const TensorView& data, int root) override {
    detail::check_host("broadcast", stream, data);
    detail::check_rank("broadcast", root, size());
    run(stream, "broadcast", data.bytes(), [data, root](Link& link) { comm::broadcast(link, data, root); });
  }

  void barrier(Stream& stream) override {
    detail::check_stream("barrier", stream);
    run(stream, "barrier", 0, [](Link& link) { comm::barrier(link); });
  }

  void send(Stream& stream, const TensorView& data, int to) override {
    detail::check_host("send", stream, data);
    detail::check_other_rank("send", to, rank(), size());
    run(stream, "send", data.bytes(), [data, to](Link& link) { comm::send(link, data, to); });
  }

  void recv(Stream& stream, const TensorView& data, int from) override {
    detail::check_host("recv", stream, data);
    detail::check_other_rank("recv", from, rank(), size());
    run(stream, "recv", data.bytes(), [data, from](Link& link) { comm::recv(link, data, from); });
  }

  [[nodiscard]] std::unique_ptr<Communicator> split(int color, int key) override {
    require<UsageError>(color >= 0, "split: color is ", color, ", expected 0 or more");
    // The ranks gather their colors and keys, then their addresses. Each rank pads its addresses to the length for a
    // group of all ranks, because gather_bytes() needs the same length on every rank.
    std::vector<int> group;
    std::shared_ptr<Link> child;
    link_->guard("split", [&](Link& link) {
      const std::array<std::int64_t, 2> mine{color, key};
      const std::string all = gather_bytes(link, {reinterpret_cast<const char*>(mine.data()), sizeof mine});
      std::vector<std::array<std::int64_t, 2>> of_ranks(static_cast<std::size_t>(link.size));
      std::memcpy(of_ranks.data(), all.data(), all.size());
      for (int r = 0; r < link.size; ++r) {
        if (of_ranks[static_cast<std::size_t>(r)][0] == color) {
          group.push_back(r);
        }
      }
      std::stable_sort(group.begin(), group.end(), [&](int a, int b) {
        return of_ranks[static_cast<std::size_t>(a)][1] < of_ranks[static_cast<std::size_t>(b)][1];
      });
      const auto place = std::find(group.begin(), group.end(), link.rank) - group.begin();
      bool exchanged = false;
      const auto exchange = [&](const std::string& addresses) {
        exchanged = true;
        const std::size_t room = ::gloo::transport::Address::kMaxByteSize * static_cast<std::size_t>(link.size);
        std::string padded = addresses;
        padded.resize(room);
        const std::string of_all = gather_bytes(link, padded);
        std::vector<std::string> of_group;
        of_group.reserve(group.size());
        for (const int r : group) {
          of_group.push_back(of_all.substr(static_cast<std::size_t>(r) * room, addresses.size()));
        }
        return of_group;
      };
      std::exception_ptr failure;
      try {
        child = std::make_shared<Link>(link.rendezvous(), static_cast<int>(place), static_cast<int>(group.size()),
                                       link.device(), link.pieces, exchange);
      } catch (const PeerError&) {
        throw;
      } catch (...) {
        failure = std::current_exception();
      }
      // If this rank is alone in its group or has failed, it has not called exchange() yet. exchange() is collective
      // over `link`, so the other ranks would wait for ever without this call.
      if (!exchanged) {
        static_cast<void>(exchange(""));
      }
      // Waits for all ranks, as make_gloo_communicator() does: a rank that went on at once could close its connections
      // while another rank still connects.
      const std::string failed = gather_bytes(link, failure != nullptr ? "1" : "0");
      if (failure != nullptr) {
        std::rethrow_exception(failure);
      }
      const std::size_t first = failed.find('1');
      require<PeerError>(first == std::string::npos, "rank ", first,
                         " cannot connect to its new group, expected each rank to connect");
    });
    return std::make_unique<GlooCommunicator>(std::move(child));
  }

  [[nodiscard]] CommunicatorCounts counts() const override { return link_->counts(); }

 private:
  static std::string gather_bytes(Link& link, std::string_view mine) {
    std::string own(mine);
    std::string all(mine.size() * static_cast<std::size_t>(link.size), '\0');
    const auto n = static_cast<std::int64_t>(mine.size());
    comm::all_gather(link, TensorView(own.data(), DType::u8, Device::cpu(), Shape{n}),
                     TensorView(all.data(), DType::u8, Device::cpu(), Shape{n * link.size}));
    return all;
  }

  template <class Call>
  void run(Stream& stream, std::string_view op, std::size_t bytes, const Call& call) {
    if (stream.is_inline()) {
      link_->perform(op, bytes, call);
      return;
    }
    stream.enqueue([link = link_, op, bytes, call] { link->perform(op, bytes, call); });
  }

  std::shared_ptr<Link> link_;
};

/// Makes a gloo device at this rank's address for the other ranks. The device's thread moves the bytes. Collective.
GlooDevice make_device(Rendezvous& rendezvous) {
  std::vector<std::string> addresses = rendezvous.all_gather(rendezvous.address());
  for (std::string& address : addresses) {
    // A rank on rank 0's host may know only its loopback address; other hosts reach such a rank at rank 0's address.
    address = detail::is_loopback(address) ? addresses[0] : address;
  }
  const auto is_v6 = [](const std::string& address) { return address.find(':') != std::string::npos; };
  for (std::size_t r = 1; r < addresses.size(); ++r) {
    require<CollectiveError<RendezvousError>>(
        is_v6(addresses[r]) == is_v6(addresses[0]), "ranks have addresses of two kinds: rank 0 ", addresses[0],
        ", rank ", r, " ", addresses[r], "; expected IPv4 or IPv6 for all: name rank 0's host by such an address");
  }
  const NoSigpipe for_its_thread_too;
  return ::gloo::transport::tcp::CreateDevice(
      ::gloo::transport::tcp::attr(addresses[static_cast<std::size_t>(rendezvous.rank())].c_str()));
}

/// First character of a text that all_or_none() sends: '+' before a result, '-' before the reason of a failure.
constexpr char kWell = '+';
constexpr char kFailed = '-';

/// Sends `mine` to all ranks, and returns every rank's text without its first character, in rank order. Collective. If
/// a rank's text begins with kFailed, throws the same CollectiveError<RendezvousError> on all ranks.
std::vector<std::string> all_or_none(Rendezvous& rendezvous, const std::string& mine) {
  std::vector<std::string> all = rendezvous.all_gather(mine);
  for (const std::string& of_rank : all) {
    require<CollectiveError<RendezvousError>>(of_rank[0] != kFailed, of_rank.substr(1));
  }
  for (std::string& of_rank : all) {
    of_rank.erase(0, 1);
  }
  return all;
}

}  // namespace

namespace detail {

std::unique_ptr<Communicator> make_gloo_communicator(std::shared_ptr<Rendezvous> rendezvous, const GlooPieces& pieces) {
  require<UsageError>(pieces.block_bytes >= 8 && pieces.segment_bytes >= 8, "gloo communicator: blocks of ",
                      pieces.block_bytes, " and segments of ", pieces.segment_bytes, " bytes, expected at least 8");
  const int rank = rendezvous->rank();
  const int size = rendezvous->size();
  // The ranks exchange their addresses, then whether they have connected. In both exchanges, a rank that has failed
  // sends the reason, and all ranks fail with this reason. No rank goes on before all have connected, because a rank
  // that went on could close its connections while another rank still connects.
  const auto exchange = [&](const std::string& mine) { return all_or_none(*rendezvous, kWell + mine); };
  try {
    const NoSigpipe no_sigpipe;
    const GlooDevice device = size > 1 ? make_device(*rendezvous) : nullptr;
    auto link = std::make_shared<Link>(rendezvous, rank, size, device, pieces, exchange);
    static_cast<void>(exchange({}));
    return std::make_unique<GlooCommunicator>(std::move(link));
  } catch (const PeerError&) {
    throw;
  } catch (const CollectiveError<RendezvousError>&) {
    throw;
  } catch (const std::exception& e) {
    const std::string who = rendezvous->why_lost(kToLearnWhoS);
    require<PeerError>(who.empty(), "gloo communicator: ", who);
    static_cast<void>(all_or_none(*rendezvous, concat(kFailed, "rank ", rank, " (", rendezvous->address(),
                                                      ") cannot connect to all ranks: ", e.what())));
    throw;
  }
}

}  // namespace detail

std::unique_ptr<Communicator> make_gloo_communicator(std::shared_ptr<Rendezvous> rendezvous) {
  return detail::make_gloo_communicator(std::move(rendezvous), {});
}

}  // namespace lockstep::comm
