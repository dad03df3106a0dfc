// Defines the NCCL functions that comm/nccl uses. They enqueue work on streams of the stand-in for CUDA.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <lockstep/runtime/base/half.hpp>

#include "machine.hpp"
#include "mailbox.hpp"
#include "nccl_control.hpp"

using lockstep::BFloat16;
using lockstep::Float16;
using lockstep::nccl_standin::Mailbox;
using lockstep::standin::Machine;
using lockstep::standin::Meeting;
using lockstep::standin::Queue;
using lockstep::standin::Range;
using lockstep::standin::thread_state;
using lockstep::standin::Work;

namespace {

template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

std::size_t bytes_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
    default:
      return 4;
  }
}

/// The meetings of one operation of several ranks. A Meeting is one execution of the operation by all of its ranks. An
/// operation that was captured in graphs has one meeting for each launch of the graphs; any other operation has one.
/// The n-th execution on each rank belongs to the n-th meeting.
class Rounds {
 public:
  using Make = std::function<Meeting(std::size_t round)>;
  Rounds(std::size_t sides, Make make) : make_(std::move(make)), next_(sides) {}
  Rounds(std::size_t size, std::size_t sides, const std::function<void()>& run)
      : Rounds(sides, [size, run](std::size_t) { return Meeting{.size = size, .run = run}; }) {}
  Meeting* next(std::size_t side) {
    const std::size_t round = next_[side]++;
    while (round >= meetings_.size()) {
      meetings_.push_back(std::make_unique<Meeting>(make_(meetings_.size())));
    }
    return meetings_[round].get();
  }

 private:
  Make make_;
  std::vector<std::size_t> next_;
  std::vector<std::unique_ptr<Meeting>> meetings_;
};

/// The buffers of one rank in a collective.
struct Part {
  const void* in = nullptr;
  void* out = nullptr;
};

/// A collective of all ranks.
struct Collective {
  const char* name = "";
  ncclDataType_t type = ncclInt8;
  std::size_t count = 0;
  int root = 0;
  bool broken = false;  ///< true if the ranks' calls do not match
  std::vector<Part> parts;
  std::unique_ptr<Rounds> rounds;
};

/// A message from one rank to another.
struct Message {
  bool to_itself = false;
  bool sent = false;
  bool expected = false;
  ncclDataType_t type = ncclInt8;
  std::size_t count = 0;
  const void* in = nullptr;
  void* out = nullptr;
  std::unique_ptr<Rounds> rounds;
};

/// Makes the work of one execution, also for an operation that was captured in a graph.
using Make = std::function<Work()>;

struct Group {
  explicit Group(int n) : size(n), members(static_cast<std::size_t>(n)), splits(static_cast<std::size_t>(n)) {}
  int size;
  int arrived = 0;
  int finalised = 0;
  std::vector<ncclComm*> members;
  std::map<std::int64_t, std::shared_ptr<Collective>> collectives;  ///< key: index in the sequence of calls
  /// The messages for which so far only one of the two ranks has called ncclSend() or ncclRecv().
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Message>>> messages;
  struct Split {
    bool called = false;
    int color = 0;
    int key = 0;
    bool blocking = false;
    ncclComm** result = nullptr;
    const char* name = nullptr;
  };
  std::vector<Split> splits;
  std::unique_ptr<Mailbox> mailbox{};  ///< only if ranks are processes
};

}  // namespace

/// One rank's communicator.
struct ncclComm {
  explicit ncclComm(const char* n) : name(n), name_text(n == nullptr ? "" : n) {}
  const char* name;  ///< caller's pointer, read again when the communicator ends, as NCCL's profilers do
  std::string name_text;
  std::shared_ptr<Group> group{};
  int rank = 0;
  int device = 0;
  bool blocking = false;  ///< true if calls are complete when they return
  std::int64_t sequence = 0;
  std::int64_t polls = 0;          ///< polls left until the call in progress takes effect
  std::function<void()> effect{};  ///< effect of the call in progress
  std::function<bool()> over{};    ///< condition for the call to take effect; empty: none
  ncclResult_t error = ncclSuccess;
  bool in_progress = false;
  bool finalised = false;
  std::shared_ptr<bool> aborted = std::make_shared<bool>(false);
  /// Counts the captured operations: each captured operation in an existing graph holds a copy of this pointer.
  std::shared_ptr<const bool> captured = std::make_shared<const bool>(true);
  [[nodiscard]] bool in_graphs() const { return captured.use_count() > 1; }
  std::shared_ptr<int> queued = std::make_shared<int>(0);  ///< number of operations that have not run yet
  std::map<const void*, Range> registered{};               ///< key: NCCL's handle, which here is the address
};

namespace {

struct RankError {
  ncclResult_t error = ncclSuccess;
  std::int64_t countdown = 0;
};

/// The state of the stand-in. The machine's lock protects it.
struct World {
  lockstep::nccl_standin::Options options;
  std::int64_t ids = 0;
  std::map<std::string, std::shared_ptr<Group>> groups;  ///< key: unique id
  std::set<ncclComm*> living;
  std::int64_t fail_countdown = 0;
  ncclResult_t fail_error = ncclSuccess;
  std::string fail_name;
  std::map<int, RankError> rank_errors;
  std::int64_t aborts = 0;
  std::set<const void*> memory{};  ///< blocks that ncclMemAlloc() returned
  std::int64_t in_registered = 0;
  std::string last_error;
};

World& world() {
  static World instance;
  return instance;
}

/// The messages of one communicator and stream between ncclGroupStart() and ncclGroupEnd(). They become one piece of
/// work.
struct Open {
  ncclComm* comm;
  cudaStream_t stream;
  const char* name;
  /// Each message, and this rank's side in it: 0 sends, 1 receives.
  std::vector<std::pair<std::shared_ptr<Message>, std::size_t>> messages{};
  std::vector<Range> uses{};
};
Work work_of(const Open& open) {
  Work work{.name = open.name, .uses = open.uses};
  for (const auto& [message, side] : open.messages) {
    work.meetings.emplace_back(message, message->rounds->next(side));  // also keeps the message alive
  }
  return work;
}
struct Call;
/// A collective that was called between ncclGroupStart() and ncclGroupEnd().
struct Pending {
  ncclComm* comm;
  std::size_t bytes;  ///< bytes of the larger of the input and the output
  std::function<ncclResult_t(const Call&)> run;
};
struct ThreadGroup {
  int depth = 0;
  std::vector<Open> open{};
  std::vector<Pending> pending{};
};
ThreadGroup& thread_group() {
  thread_local ThreadGroup group;
  return group;
}

struct Call {
  explicit Call(const char* name) : machine(Machine::instance()), lock(machine.mutex) {
    machine.log.emplace_back(name);
    World& w = world();
    if (w.fail_countdown > 0 && w.fail_name == name && --w.fail_countdown == 0) {
      injected = w.fail_error;
      w.last_error = text("injected into ", name);
    }
  }
  Machine& machine;
  std::unique_lock<std::mutex> lock;
  ncclResult_t injected = ncclSuccess;

  ncclResult_t violate(const std::string& what, ncclResult_t result = ncclInvalidUsage) const {
    machine.violations.push_back(what);
    return result;
  }

  /// Checks at the beginning of every call that the communicator exists, has no error, and has no other call in
  /// progress.
  ncclResult_t check(const char* name, ncclComm* comm) const {
    if (world().living.count(comm) == 0) {
      return violate(text(name, ": not a communicator that is alive"), ncclInvalidArgument);
    }
    if (injected != ncclSuccess) {
      comm->error = injected;
      return injected;
    }
    if (comm->error != ncclSuccess) {
      return comm->error;
    }
    if (comm->in_progress) {
      return violate(text(name, ": rank ", comm->rank, " has a call in progress"));
    }
    if (comm->finalised && std::strcmp(name, "ncclCommDestroy") != 0) {
      return violate(text(name, ": rank ", comm->rank, " has finalised"));
    }
    return ncclSuccess;
  }
};

/// Begins a call on a communicator. `effect` runs at once, or after Options::polls polls and as soon as over() is true.
ncclResult_t begin(ncclComm* comm, std::function<void()> effect, std::function<bool()> over = {}) {
  comm->polls = comm->blocking ? 0 : world().options.polls;
  comm->effect = std::move(effect);
  comm->over = std::move(over);
  comm->in_progress = true;
  if (comm->polls == 0 && !comm->over) {
    comm->in_progress = false;
    const std::function<void()> now = std::exchange(comm->effect, {});
    if (now) {
      now();
    }
    return ncclSuccess;
  }
  return ncclInProgress;
}

template <class T>
T add(T a, T b) {
  if constexpr (std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>) {
    return T(static_cast<float>(a) + static_cast<float>(b));
  } else {
    return static_cast<T>(a + b);
  }
}

template <class T>
void add_all(std::byte* total, const std::byte* values, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    T a;
    T b;
    std::memcpy(&a, total + i * sizeof(T), sizeof(T));
    std::memcpy(&b, values + i * sizeof(T), sizeof(T));
    a = add(a, b);
    std::memcpy(total + i * sizeof(T), &a, sizeof(T));
  }
}

void add_to(ncclDataType_t type, std::vector<std::byte>& total, const std::vector<std::byte>& values,
            std::size_t count) {
  switch (type) {
    case ncclFloat32:
      return add_all<float>(total.data(), values.data(), count);
    case ncclFloat64:
      return add_all<double>(total.data(), values.data(), count);
    case ncclInt32:
    case ncclUint32:
      return add_all<std::uint32_t>(total.data(), values.data(), count);
    case ncclInt64:
    case ncclUint64:
      return add_all<std::uint64_t>(total.data(), values.data(), count);
    case ncclBfloat16:
      return add_all<BFloat16>(total.data(), values.data(), count);
    case ncclFloat16:
      return add_all<Float16>(total.data(), values.data(), count);
    default:
      return add_all<std::uint8_t>(total.data(), values.data(), count);
  }
}

/// Returns how many elements a rank reads and how many it writes.
std::pair<std::size_t, std::size_t> counts_of(const Collective& c) {
  const std::size_t size = c.parts.size();
  const std::string_view name = c.name;
  if (name == "ncclReduceScatter") {
    return {c.count * size, c.count};
  }
  return {c.count, name == "ncclAllGather" ? c.count * size : c.count};
}

using Bytes = std::vector<std::byte>;

/// Returns the bytes that `rank` receives. in: the bytes that each rank contributes.
Bytes outcome(const Collective& c, const std::vector<Bytes>& in, std::size_t rank) {
  const std::string_view name = c.name;
  const std::size_t part = c.count * bytes_of(c.type);
  if (name == "ncclAllReduce" || name == "ncclReduceScatter") {
    Bytes total = in[0];
    for (std::size_t r = 1; r < in.size(); ++r) {
      add_to(c.type, total, in[r], counts_of(c).first);
    }
    const auto begin = total.begin() + static_cast<std::ptrdiff_t>(name == "ncclReduceScatter" ? rank * part : 0);
    return {begin, begin + static_cast<std::ptrdiff_t>(part)};
  }
  if (name == "ncclAllGather") {
    Bytes all;
    for (const Bytes& each : in) {
      all.insert(all.end(), each.begin(), each.end());
    }
    return all;
  }
  return in[static_cast<std::size_t>(c.root)];
}

Bytes brought(const Collective& c, std::size_t rank) {
  const auto* begin = static_cast<const std::byte*>(c.parts[rank].in);
  return {begin, begin + counts_of(c).first * bytes_of(c.type)};
}

void exchange(Machine& machine, const Collective& c) {
  if (c.broken) {
    return;
  }
  std::vector<const void*> memory;
  for (const Part& part : c.parts) {
    memory.push_back(part.in);
    memory.push_back(part.out);
  }
  machine.with_memory(memory, [&c] {
    std::vector<Bytes> in;
    for (std::size_t r = 0; r < c.parts.size(); ++r) {
      in.push_back(brought(c, r));
    }
    for (std::size_t r = 0; r < c.parts.size(); ++r) {
      const Bytes out = outcome(c, in, r);
      std::memcpy(c.parts[r].out, out.data(), out.size());
    }
  });
}

/// Returns the meeting for execution number `round` of a collective among processes. Each rank writes a letter
/// (Mailbox). The letter's head describes the call and must be equal on all ranks. The letter's bytes are the rank's
/// data.
Meeting meeting_of_processes(Machine& machine, const Mailbox& mailbox, const Collective& of, std::size_t rank,
                             std::int64_t place, std::size_t round) {
  const std::string letter = text("collective ", place, " round ", round, " of rank ");
  const std::string head = text(of.name, " of ", of.count, ", type ", of.type, ", root ", of.root, '\n');
  Meeting meeting{.size = 1};
  const Collective* c = &of;  // valid, as the collective owns the meeting
  meeting.elsewhere = [&machine, &mailbox, c, rank, letter, head, posted = false]() mutable {
    if (!std::exchange(posted, true)) {
      machine.with_memory({c->parts[rank].in}, [&] { mailbox.put(text(letter, rank), head, brought(*c, rank)); });
    }
    for (std::size_t r = 0; r < c->parts.size(); ++r) {
      if (!mailbox.has(text(letter, r))) {
        return false;
      }
    }
    return true;
  };
  meeting.run = [&machine, &mailbox, c, rank, letter, head] {
    std::vector<Bytes> in;
    for (std::size_t r = 0; r < c->parts.size(); ++r) {
      auto [other, bytes] = mailbox.get(text(letter, r));
      if (other != head) {
        machine.violations.push_back(text("rank ", rank, " calls ", head, "rank ", r, " ", other));
        return;
      }
      in.push_back(std::move(bytes));
    }
    const Bytes out = outcome(*c, in, rank);
    machine.with_memory({c->parts[rank].out}, [&] { std::memcpy(c->parts[rank].out, out.data(), out.size()); });
  };
  return meeting;
}

/// Checks that the stream and the thread's current device are those of the communicator.
ncclResult_t check_stream(const Call& call, const char* name, const ncclComm* comm, cudaStream_t stream) {
  const Queue* queue = call.machine.queue_of(stream);
  if (queue == nullptr || queue->device != comm->device || thread_state().current() != comm->device) {
    return call.violate(text(name, ": expected a stream of device ", comm->device, ", which is current"),
                        ncclInvalidArgument);
  }
  return ncclSuccess;
}

ncclResult_t check_memory(const Call& call, const char* name, const ncclComm* comm, const void* pointer,
                          std::size_t bytes) {
  return call.machine.check_device(name, pointer, bytes, comm->device) == cudaSuccess ? ncclSuccess
                                                                                      : ncclInvalidArgument;
}

void put(Machine& machine, const ncclComm* comm, cudaStream_t stream, const char* name, const Make& make) {
  Queue* queue = machine.queue_of(stream);
  if (queue == nullptr) {
    machine.violations.emplace_back("nccl: the stream was destroyed while the call was in progress");
    return;
  }
  const Make next = [make, queued = comm->queued, aborted = comm->aborted] {
    Work work = make();
    ++*queued;
    work.run = [queued] { --*queued; };
    work.given_up = aborted;
    return work;
  };
  if (queue->capture == nullptr) {
    machine.enqueue(*queue, next());
  } else {
    machine.enqueue(*queue, {.name = name, .again = [next, held = comm->captured] { return next(); }});
  }
}

bool is_registered(const ncclComm& comm, const Range& range) {
  return std::any_of(comm.registered.begin(), comm.registered.end(), [&](const auto& entry) {
    const Range& known = entry.second;
    return range.begin >= known.begin && range.begin + range.bytes <= known.begin + known.bytes;
  });
}

/// Enqueues one rank's part of a collective, after the checks that are possible on this rank.
ncclResult_t enqueue(const Call& call, const char* name, ncclComm* comm, const void* in, void* out, std::size_t count,
                     ncclDataType_t type, int root, cudaStream_t stream) {
  ncclResult_t result = ncclSuccess;
  Group& group = *comm->group;
  const std::int64_t place = comm->sequence++;
  std::shared_ptr<Collective>& c = group.collectives[place];
  if (c == nullptr) {
    c = std::make_shared<Collective>();
    c->name = name;
    c->type = type;
    c->count = count;
    c->root = root;
    c->parts.resize(static_cast<std::size_t>(group.size));
    c->rounds =
        group.mailbox != nullptr
            ? std::make_unique<Rounds>(c->parts.size(),
                                       [&machine = call.machine, &mailbox = *group.mailbox, what = c.get(), place,
                                        rank = static_cast<std::size_t>(comm->rank)](std::size_t round) {
                                         return meeting_of_processes(machine, mailbox, *what, rank, place, round);
                                       })
            : std::make_unique<Rounds>(c->parts.size(), c->parts.size(),
                                       [&machine = call.machine, what = c.get()] { exchange(machine, *what); });
  } else if (std::strcmp(c->name, name) != 0 || c->type != type || c->count != count || c->root != root) {
    c->broken = true;
    call.machine.violations.push_back(
        text("rank ", comm->rank, " calls ", name, " of ", count, ", another rank ", c->name, " of ", c->count));
  }
  const auto [reads, writes] = counts_of(*c);
  const std::size_t width = bytes_of(type);
  if (!c->broken) {
    result = check_memory(call, name, comm, in, reads * width);
    result = result == ncclSuccess ? check_memory(call, name, comm, out, writes * width) : result;
    if (result != ncclSuccess) {
      return result;
    }
  }
  c->parts[static_cast<std::size_t>(comm->rank)] = {in, out};
  const std::vector<Range> uses{{static_cast<const std::byte*>(in), reads * width},
                                {static_cast<const std::byte*>(out), writes * width}};
  world().in_registered += is_registered(*comm, uses[0]) && is_registered(*comm, uses[1]) ? 1 : 0;
  const Make make = [name, uses, c, side = static_cast<std::size_t>(comm->rank)] {
    Work work{.name = name, .uses = uses};
    work.meetings.emplace_back(c, c->rounds->next(side));
    return work;
  };
  return begin(comm, [&machine = call.machine, comm, stream, name, make] { put(machine, comm, stream, name, make); });
}

ncclResult_t collective(const char* name, ncclComm* comm, const void* in, void* out, std::size_t count,
                        ncclDataType_t type, int root, cudaStream_t stream) {
  const Call call(name);
  ncclResult_t result = call.check(name, comm);
  result = result == ncclSuccess ? check_stream(call, name, comm, stream) : result;
  if (result != ncclSuccess || thread_group().depth == 0) {
    return result == ncclSuccess ? enqueue(call, name, comm, in, out, count, type, root, stream) : result;
  }
  const bool parts = std::strcmp(name, "ncclAllGather") == 0 || std::strcmp(name, "ncclReduceScatter") == 0;
  thread_group().pending.push_back(
      {comm, count * bytes_of(type) * static_cast<std::size_t>(parts ? comm->group->size : 1),
       [=](const Call& end) { return enqueue(end, name, comm, in, out, count, type, root, stream); }});
  return ncclSuccess;
}

ncclResult_t message(const char* name, bool sends, ncclComm* comm, const void* in, void* out, std::size_t count,
                     ncclDataType_t type, int peer, cudaStream_t stream) {
  const Call call(name);
  ncclResult_t result = call.check(name, comm);
  result = result == ncclSuccess ? check_stream(call, name, comm, stream) : result;
  if (result == ncclSuccess && comm->group->mailbox != nullptr) {
    result = call.violate(text(name, ": between processes there are collectives only"));
  }
  const std::size_t bytes = count * bytes_of(type);
  const void* data = sends ? in : out;
  result = result == ncclSuccess ? check_memory(call, name, comm, data, bytes) : result;
  if (result != ncclSuccess) {
    return result;
  }
  const std::pair<int, int> way = sends ? std::pair(comm->rank, peer) : std::pair(peer, comm->rank);
  auto& waiting = comm->group->messages[way];
  const auto lacks_ours =
      std::find_if(waiting.begin(), waiting.end(), [&](const auto& m) { return sends ? !m->sent : !m->expected; });
  std::shared_ptr<Message> m;
  if (lacks_ours == waiting.end()) {
    m = std::make_shared<Message>();
    m->type = type;
    m->count = count;
    m->to_itself = way.first == way.second;
    m->rounds = std::make_unique<Rounds>(m->to_itself ? 1 : 2, 2, [&machine = call.machine, what = m.get()] {
      machine.with_memory({what->in, what->out},
                          [what] { std::memmove(what->out, what->in, what->count * bytes_of(what->type)); });
    });
    waiting.push_back(m);
  } else {
    m = *lacks_ours;
    waiting.erase(lacks_ours);
    if (m->type != type || m->count != count) {
      call.machine.violations.push_back(
          text("rank ", comm->rank, " calls ", name, " of ", count, ", its peer has ", m->count));
      m->count = 0;
    }
  }
  if (sends) {
    m->sent = true;
    m->in = in;
  } else {
    m->expected = true;
    m->out = out;
  }
  const Range uses{static_cast<const std::byte*>(data), bytes};
  const std::size_t side = sends ? 0 : 1;
  ThreadGroup& group = thread_group();
  if (group.depth > 0) {
    auto open = std::find_if(group.open.begin(), group.open.end(),
                             [&](const Open& o) { return o.comm == comm && o.stream == stream; });
    if (open == group.open.end()) {
      open = group.open.insert(group.open.end(), {comm, stream, name});
    }
    if (!m->to_itself || sends) {  // a message to itself: only the sending call adds the work
      open->messages.emplace_back(m, side);
    }
    open->uses.push_back(uses);
    return ncclSuccess;
  }
  const Make make = [open = Open{comm, stream, name, {{m, side}}, {uses}}] { return work_of(open); };
  return begin(comm, [&machine = call.machine, comm, stream, name, make] { put(machine, comm, stream, name, make); });
}

/// Creates the new communicators once all ranks of a group have called ncclCommSplit().
void split(Group& group) {
  std::map<int, std::vector<int>> colors;
  for (int r = 0; r < group.size; ++r) {
    colors[group.splits[static_cast<std::size_t>(r)].color].push_back(r);
  }
  for (auto& [color, ranks] : colors) {
    std::stable_sort(ranks.begin(), ranks.end(), [&](int a, int b) {
      return group.splits[static_cast<std::size_t>(a)].key < group.splits[static_cast<std::size_t>(b)].key;
    });
    const auto part = std::make_shared<Group>(static_cast<int>(ranks.size()));
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      const auto r = static_cast<std::size_t>(ranks[i]);
      auto* comm = new ncclComm(group.splits[r].name);
      comm->group = part;
      comm->rank = static_cast<int>(i);
      comm->device = group.members[r]->device;
      comm->blocking = group.splits[r].blocking;
      part->members[i] = comm;
      ++part->arrived;
      world().living.insert(comm);
      *group.splits[r].result = comm;
    }
  }
  group.splits.assign(group.splits.size(), {});
}

/// Returns true if every rank has written the letter "`what` of rank r". Each rank is a process.
bool all_have(const Group& group, const char* what) {
  for (int r = 0; r < group.size; ++r) {
    if (!group.mailbox->has(text(what, " of rank ", r))) {
      return false;
    }
  }
  return true;
}

bool all_have_arrived(const Group& group) {
  return group.mailbox != nullptr ? all_have(group, "arrival") : group.arrived == group.size;
}

bool all_have_finalised(const Group& group) {
  return group.mailbox != nullptr ? all_have(group, "end") : group.finalised == group.size;
}

/// Returns true if another rank, which is another process, has written its letter about ncclCommAbort().
bool peer_has_aborted(const ncclComm& comm) {
  for (int r = 0; comm.group->mailbox != nullptr && r < comm.group->size; ++r) {
    if (r != comm.rank && comm.group->mailbox->has(text("abort of rank ", r))) {
      return true;
    }
  }
  return false;
}

void forget(ncclComm* comm) {
  if (comm->name != nullptr && comm->name != comm->name_text) {
    Machine::instance().violations.push_back(text("the name of rank ", comm->rank, " went before its communicator"));
  }
  for (ncclComm*& member : comm->group->members) {
    member = member == comm ? nullptr : member;
  }
  world().living.erase(comm);
  delete comm;
}

}  // namespace

namespace lockstep::nccl_standin {

void reset(const Options& options) {
  const std::lock_guard lock(Machine::instance().mutex);
  for (ncclComm* comm : world().living) {
    delete comm;
  }
  world() = {};
  world().options = options;
}

void fail_call(std::int64_t n, ncclResult_t error, std::string_view name) {
  const std::lock_guard lock(Machine::instance().mutex);
  world().fail_countdown = n;
  world().fail_error = error;
  world().fail_name = name;
}

void fail_rank(int rank, ncclResult_t error, std::int64_t n) {
  const std::lock_guard lock(Machine::instance().mutex);
  world().rank_errors[rank] = {error, n};
}

std::vector<std::string> leaks() {
  const std::lock_guard lock(Machine::instance().mutex);
  std::vector<std::string> result;
  for (const ncclComm* comm : world().living) {
    result.push_back(text("communicator of rank ", comm->rank, " of ", comm->group->size));
  }
  return result;
}

std::int64_t aborts() {
  const std::lock_guard lock(Machine::instance().mutex);
  return world().aborts;
}

std::int64_t in_registered_memory() {
  const std::lock_guard lock(Machine::instance().mutex);
  return world().in_registered;
}

}  // namespace lockstep::nccl_standin

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  const Call call("ncclGetVersion");
  *version = world().options.version;
  return call.injected;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const Call call("ncclGetUniqueId");
  *id = {};
  std::snprintf(id->internal, sizeof id->internal, "%lld of process %lld", static_cast<long long>(++world().ids),
                static_cast<long long>(getpid()));
  id->internal[sizeof id->internal - 1] = '\x7f';  // also sets the last byte, because all bytes of an id count
  return call.injected;
}

const char* ncclGetErrorString(ncclResult_t result) {
  static constexpr const char* kTexts[] = {"no error",
                                           "unhandled cuda error",
                                           "unhandled system error",
                                           "internal error",
                                           "invalid argument",
                                           "invalid usage",
                                           "remote process exited or there was a network error",
                                           "in progress"};
  return result >= 0 && result < ncclNumResults ? kTexts[result] : "unknown result code";
}

const char* ncclGetLastError(ncclComm_t /*comm*/) {
  const std::lock_guard lock(Machine::instance().mutex);
  thread_local std::string copy;
  copy = world().last_error;
  return copy.c_str();
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* result, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  const Call call("ncclCommInitRankConfig");
  if (call.injected != ncclSuccess) {
    return call.injected;
  }
  if (config == nullptr || config->magic != 0xcafebeef || config->blocking != 0 || rank < 0 || rank >= size ||
      (config->minCTAs > config->maxCTAs)) {
    return call.violate("ncclCommInitRankConfig: not a non-blocking configuration, or not a rank", ncclInvalidArgument);
  }
  std::shared_ptr<Group>& group = world().groups[std::string(id.internal, sizeof id.internal)];
  if (group == nullptr) {
    group = std::make_shared<Group>(size);
    if (!world().options.folder.empty() && size > 1) {
      group->mailbox = std::make_unique<Mailbox>(world().options.folder + "/communicator " + id.internal);
      call.machine.run_by_itself();
    }
  }
  if (group->size != size || group->members[static_cast<std::size_t>(rank)] != nullptr) {
    return call.violate(text("ncclCommInitRankConfig: rank ", rank, " of ", size, " came twice, or to another size"));
  }
  auto* comm = new ncclComm(config->commName);
  comm->group = group;
  comm->rank = rank;
  comm->device = thread_state().current();
  group->members[static_cast<std::size_t>(rank)] = comm;
  ++group->arrived;
  world().living.insert(comm);
  *result = comm;
  if (group->mailbox != nullptr) {
    group->mailbox->put(text("arrival of rank ", rank));
  }
  return begin(comm, {},
               [g = group.get(), rank] { return all_have_arrived(*g) && rank != world().options.stuck_rank; });
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  const Call call("ncclCommGetAsyncError");
  if (world().living.count(comm) == 0) {
    return call.violate("ncclCommGetAsyncError: not a communicator that is alive", ncclInvalidArgument);
  }
  if (call.injected != ncclSuccess) {
    return call.injected;
  }
  const auto error = world().rank_errors.find(comm->rank);
  if (error != world().rank_errors.end() && --error->second.countdown <= 0) {
    comm->error = error->second.error;
    world().last_error = text("injected into rank ", comm->rank);
  }
  if (comm->error == ncclSuccess && peer_has_aborted(*comm)) {
    comm->error = ncclRemoteError;
  }
  if (comm->error == ncclSuccess && comm->in_progress && (!comm->over || comm->over()) && comm->polls-- <= 0) {
    comm->in_progress = false;
    comm->over = {};
    const std::function<void()> now = std::exchange(comm->effect, {});
    if (now) {
      now();
    }
  }
  *state = comm->error != ncclSuccess ? comm->error : comm->in_progress ? ncclInProgress : ncclSuccess;
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  const Call call("ncclCommUserRank");
  *rank = comm->rank;
  return call.check("ncclCommUserRank", comm);
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  const Call call("ncclCommCount");
  *count = comm->group->size;
  return call.check("ncclCommCount", comm);
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  const Call call("ncclCommCuDevice");
  *device = comm->device;
  return call.check("ncclCommCuDevice", comm);
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* result, ncclConfig_t* config) {
  const Call call("ncclCommSplit");
  const ncclResult_t status = call.check("ncclCommSplit", comm);
  if (status != ncclSuccess) {
    return status;
  }
  if (config == nullptr || *comm->queued != 0) {
    return call.violate("ncclCommSplit: no configuration, or operations are queued");
  }
  if (comm->group->mailbox != nullptr) {
    return call.violate("ncclCommSplit: between processes there are collectives only");
  }
  Group& group = *comm->group;
  group.splits[static_cast<std::size_t>(comm->rank)] = {true,   color,           key, config->blocking != 0,
                                                        result, config->commName};
  if (std::all_of(group.splits.begin(), group.splits.end(), [](const Group::Split& s) { return s.called; })) {
    split(group);
  }
  return begin(comm, {}, [g = &group, rank = comm->rank] { return !g->splits[static_cast<std::size_t>(rank)].called; });
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  Call call("ncclCommFinalize");
  const ncclResult_t status = call.check("ncclCommFinalize", comm);
  if (status != ncclSuccess) {
    return status;
  }
  if (*comm->queued != 0) {
    return call.violate(text("ncclCommFinalize: rank ", comm->rank, " has ", *comm->queued, " operations queued"));
  }
  comm->finalised = true;
  ++comm->group->finalised;
  if (comm->group->mailbox != nullptr) {
    comm->group->mailbox->put(text("end of rank ", comm->rank));
  }
  const auto over = [comm] { return all_have_finalised(*comm->group) && !comm->in_graphs(); };
  if (comm->blocking) {
    while (!over() && comm->error == ncclSuccess) {
      call.machine.changed.wait_for(call.lock, std::chrono::milliseconds(1));
    }
    return comm->error;
  }
  return begin(comm, {}, over);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const Call call("ncclCommDestroy");
  const ncclResult_t status = call.check("ncclCommDestroy", comm);
  if (status != ncclSuccess) {
    return status;
  }
  if (!comm->finalised) {
    return call.violate(text("ncclCommDestroy: rank ", comm->rank, " has not finalised"));
  }
  forget(comm);
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  Call call("ncclCommAbort");
  if (world().living.count(comm) == 0) {
    return call.violate("ncclCommAbort: not a communicator that is alive", ncclInvalidArgument);
  }
  ++world().aborts;
  *comm->aborted = true;
  for (ncclComm* other : comm->group->members) {
    if (other != nullptr && other != comm && world().options.peers_notice && other->error == ncclSuccess) {
      other->error = ncclRemoteError;
    }
  }
  if (comm->group->mailbox != nullptr && world().options.peers_notice) {
    comm->group->mailbox->put(text("abort of rank ", comm->rank));
  }
  call.machine.changed.notify_all();
  while (world().living.count(comm) != 0 && comm->in_graphs()) {  // blocks forever, as NCCL does
    call.machine.changed.wait_for(call.lock, std::chrono::milliseconds(1));
  }
  if (world().living.count(comm) != 0) {  // false if reset() was called meanwhile
    forget(comm);
  }
  return ncclSuccess;
}

// Allocates memory of the current device.
ncclResult_t ncclMemAlloc(void** pointer, size_t bytes) {
  const Call call("ncclMemAlloc");
  if (call.injected != ncclSuccess) {
    return call.injected;
  }
  if (call.machine.need_context() != cudaSuccess ||
      call.machine.allocate(pointer, bytes, false, thread_state().current()) != cudaSuccess) {
    thread_state().last_error = cudaSuccess;
    return ncclUnhandledCudaError;
  }
  world().memory.insert(*pointer);
  return ncclSuccess;
}

ncclResult_t ncclMemFree(void* pointer) {
  const Call call("ncclMemFree");
  if (world().memory.erase(pointer) == 0) {
    return call.violate("ncclMemFree: not memory of ncclMemAlloc", ncclInvalidArgument);
  }
  for (const ncclComm* comm : world().living) {
    if (comm->registered.count(pointer) != 0) {
      call.machine.violations.push_back(text("ncclMemFree: rank ", comm->rank, " has the memory registered"));
    }
  }
  return call.machine.release(pointer, false) == cudaSuccess ? call.injected : ncclUnhandledCudaError;
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void* pointer, size_t bytes, void** handle) {
  const Call call("ncclCommRegister");
  if (call.injected != ncclSuccess) {  // only this call fails; the communicator stays usable
    return call.injected;
  }
  const ncclResult_t status = call.check("ncclCommRegister", comm);
  if (status != ncclSuccess || check_memory(call, "ncclCommRegister", comm, pointer, bytes) != ncclSuccess) {
    return status != ncclSuccess ? status : ncclInvalidArgument;
  }
  comm->registered[pointer] = {static_cast<const std::byte*>(pointer), bytes};
  *handle = pointer;
  return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle) {
  const Call call("ncclCommDeregister");
  const ncclResult_t status = call.check("ncclCommDeregister", comm);
  if (status == ncclSuccess && comm->registered.erase(handle) == 0) {
    return call.violate("ncclCommDeregister: not a registration", ncclInvalidArgument);
  }
  return status;
}

ncclResult_t ncclGroupStart() {
  const Call call("ncclGroupStart");
  ++thread_group().depth;
  return call.injected;
}

ncclResult_t ncclGroupEnd() {
  const Call call("ncclGroupEnd");
  ThreadGroup& group = thread_group();
  if (--group.depth > 0) {
    return ncclSuccess;
  }
  ncclResult_t result = call.injected;
  const auto good = [&] { return result == ncclSuccess || result == ncclInProgress; };
  for (const Pending& pending : std::exchange(group.pending, {})) {
    if (!good()) {
      pending.comm->error = result;
      continue;
    }
    const ncclResult_t status = pending.run(call);
    result = status != ncclSuccess ? status : result;
  }
  for (Open& open : std::exchange(group.open, {})) {
    if (!good()) {
      open.comm->error = result;
      continue;
    }
    const ncclResult_t status = begin(open.comm, [&machine = call.machine, open] {
      put(machine, open.comm, open.stream, open.name, [open] { return work_of(open); });
    });
    result = status != ncclSuccess ? status : result;
  }
  return result;
}

ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t* info) {
  const Call call("ncclGroupSimulateEnd");
  ThreadGroup& group = thread_group();
  const std::vector<Open> messages = std::exchange(group.open, {});
  const std::vector<Pending> pending = std::exchange(group.pending, {});
  if (--group.depth != 0 || info == nullptr || info->magic != 0x74685283) {
    return call.violate("ncclGroupSimulateEnd: not the end of a group, or no structure for its answer");
  }
  if (!messages.empty()) {
    return call.violate("ncclGroupSimulateEnd: messages are not estimated, and their connections never made");
  }
  for (const Pending& each : pending) {
    if (!each.comm->blocking) {
      return call.violate(
          text("ncclGroupSimulateEnd: rank ", each.comm->rank, " does not block: NCCL would execute this"));
    }
    if (call.injected != ncclSuccess) {
      each.comm->error = call.injected;
    }
    if (each.comm->group->size > 1) {
      info->estimatedTime = static_cast<float>(lockstep::nccl_standin::kEstimateMicroseconds) +
                            static_cast<float>(each.bytes) / static_cast<float>(lockstep::nccl_standin::kEstimateBytes);
    }
  }
  return call.injected;
}

ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return op != ncclSum ? ncclInvalidArgument : collective("ncclAllReduce", comm, in, out, count, type, 0, stream);
}

ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  return op != ncclSum ? ncclInvalidArgument : collective("ncclReduceScatter", comm, in, out, count, type, 0, stream);
}

ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return collective("ncclAllGather", comm, in, out, count, type, 0, stream);
}

ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  return collective("ncclBroadcast", comm, in, out, count, type, root, stream);
}

ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return message("ncclSend", true, comm, data, nullptr, count, type, peer, stream);
}

ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return message("ncclRecv", false, comm, nullptr, data, count, type, peer, stream);
}

}  // extern "C"
