#include <lockstep/nn/plan/detail/recomputation.hpp>

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include <lockstep/nn/plan/detail/place_slots.hpp>
#include <lockstep/nn/plan/memory_plan.hpp>
#include <lockstep/runtime/base/align.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::nn {

namespace {

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

void insert(std::vector<int>& sorted, int value) {
  if (sorted.empty() || sorted.back() != value) {
    sorted.push_back(value);
  }
}

/// Disjoint sets of tensors (union-find). Each set is named by one of its tensors.
class Groups {
 public:
  explicit Groups(std::size_t tensors) : next_(tensors) { std::iota(next_.begin(), next_.end(), 0); }
  [[nodiscard]] int of(int tensor) const {
    while (next_[at(tensor)] != tensor) {
      tensor = next_[at(tensor)];
    }
    return tensor;
  }
  void join(int tensor, int other) { next_[at(of(tensor))] = of(other); }

 private:
  /// Parent of each tensor in the tree of its set; the root, which names the set, is its own parent.
  std::vector<int> next_;
};

/// Memory that a slot in the workspace and its aliases share, with the calls that touch this memory.
struct Tensor {
  std::size_t bytes = 0;
  std::vector<int> writers{}, readers{};  ///< forward calls that write or read the tensor, ascending
  int backward_read = -1;                 ///< first backward call that reads the tensor; -1: none
  bool backward_writes = false;
  [[nodiscard]] bool saved() const { return backward_read >= 0; }
};

/// Tensors that a call reads and writes.
struct Use {
  std::vector<int> reads{}, writes{};
  bool once = false;  ///< true: a forward call that must not be repeated
};

/// A call in the new order of calls. `again` is true if the call is a forward call that is repeated during backward.
struct Place {
  int call = 0;
  bool again = false;
};

/// A set of tensors that backward computes again, and the plan that results from this set.
struct Proposal {
  std::vector<bool> again;  ///< for each tensor, true if it is computed again
  std::vector<Place> order{};
  std::vector<Lifetime> lives{};
  std::size_t most_alive = 0;  ///< largest number of bytes alive at one time: a lower bound of `bytes`
  std::size_t bytes = 0;       ///< size of the workspace; 0 before plan_memory() has run
  double flops = 0;            ///< operations of the repeated calls
  double moved = 0;            ///< bytes that the repeated calls read and write
};

/// Proposes tensors that backward computes again. To compute a tensor again, backward repeats all forward calls that
/// write the tensor. The results of the plan must stay the same to the bit. So every proposal must meet these
/// conditions:
/// - Backward computes every tensor again that a repeated call writes, scratch memory included.
/// - No backward call other than a repeated call writes these tensors.
/// - Outside the workspace, a repeated call writes no memory, and it reads no memory that any call of the plan writes.
///   So a call that updates running statistics is never repeated.
/// - A repeated call was not made by PlanBuilder::call_once(), as an all-gather is.
/// - If a repeated call reads a tensor that backward does not compute again, the tensor must stay in memory from
///   forward on, and no call may write the tensor after its use in forward.
///
/// Dropout needs no condition, because its masks depend only on seed, epoch and sample.
class Recomputation {
 public:
  explicit Recomputation(const PlanContents& contents);
  [[nodiscard]] Proposal nothing() const { return proposed(std::vector<bool>(tensors_.size())); }
  [[nodiscard]] Proposal cheap() const;
  [[nodiscard]] std::vector<Proposal> blocks() const;
  [[nodiscard]] int tensor_of(int slot) const { return tensor_of_[at(slot)]; }

 private:
  [[nodiscard]] bool may_repeat(int tensor) const;
  [[nodiscard]] bool keeps_value(int tensor, int reader) const;
  [[nodiscard]] std::vector<int> units() const;
  [[nodiscard]] std::vector<bool> inside(const std::vector<int>& segments) const;
  [[nodiscard]] std::vector<int> cut(double distance) const;
  [[nodiscard]] Proposal proposed(const std::vector<bool>& possible) const;
  [[nodiscard]] std::vector<Place> ordered(const std::vector<bool>& again) const;
  void add_lives(Proposal& proposal) const;

  const PlanContents& contents_;
  int forward_;  ///< number of forward calls
  std::vector<int> tensor_of_;
  std::vector<Tensor> tensors_;
  std::vector<Use> uses_;
  /// Element i: bytes of the tensors that calls before i write and forward calls from i on read.
  std::vector<double> crossing_;
};

Recomputation::Recomputation(const PlanContents& contents)
    : contents_(contents), forward_(contents.backward_begin), tensor_of_(contents.slots.size(), -1) {
  std::vector<int> of_root(contents.slots.size(), -1);
  for (std::size_t i = 0; i < contents.slots.size(); ++i) {
    if (contents.slots[i].kind != SlotKind::workspace) {
      continue;
    }
    const int root = root_of(contents.slots, static_cast<int>(i));
    if (of_root[at(root)] < 0) {
      of_root[at(root)] = static_cast<int>(tensors_.size());
      tensors_.push_back({.bytes = contents.slots[at(root)].bytes + contents.guard_bytes()});
    }
    tensor_of_[i] = of_root[at(root)];
  }
  std::set<std::pair<SlotKind, int>> changed;  // memory outside the workspace that some call writes
  for (const Call& call : contents.calls) {
    for (const SlotId slot : call.writes) {
      const SlotInfo& info = contents.slots[at(slot.index)];
      if (info.kind != SlotKind::workspace) {
        changed.emplace(info.kind, info.source);
      }
    }
  }
  for (int c = 0; c < static_cast<int>(contents.calls.size()); ++c) {
    const Call& call = contents.calls[at(c)];
    Use use{.once = call.once};
    for (const SlotId slot : call.reads) {
      const SlotInfo& info = contents.slots[at(slot.index)];
      use.once = use.once || changed.contains({info.kind, info.source});
      if (const int t = tensor_of_[at(slot.index)]; t >= 0) {
        use.reads.push_back(t);
        if (c < forward_) {
          insert(tensors_[at(t)].readers, c);
        } else if (!tensors_[at(t)].saved()) {
          tensors_[at(t)].backward_read = c;
        }
      }
    }
    for (const SlotId slot : call.writes) {
      const int t = tensor_of_[at(slot.index)];
      use.once = use.once || t < 0;
      if (t >= 0) {
        use.writes.push_back(t);
        tensors_[at(t)].backward_writes = tensors_[at(t)].backward_writes || c >= forward_;
        if (c < forward_) {
          insert(tensors_[at(t)].writers, c);
        }
      }
    }
    uses_.push_back(std::move(use));
  }
  crossing_.assign(at(forward_) + 1, 0);
  for (const Tensor& tensor : tensors_) {
    if (!tensor.writers.empty() && !tensor.readers.empty()) {
      for (int i = tensor.writers.front() + 1; i <= tensor.readers.back(); ++i) {
        crossing_[at(i)] += static_cast<double>(tensor.bytes);
      }
    }
  }
}

/// Returns true if all calls that write `tensor` may be repeated, and no backward call writes `tensor`.
bool Recomputation::may_repeat(int tensor) const {
  const Tensor& t = tensors_[at(tensor)];
  return !t.writers.empty() && !t.backward_writes &&
         std::none_of(t.writers.begin(), t.writers.end(), [&](int call) { return uses_[at(call)].once; });
}

/// Returns true if a forward call before `reader` writes `tensor`, and no call from `reader` on writes it. Backward can
/// then still read the value that `reader` reads, unless the memory is freed.
bool Recomputation::keeps_value(int tensor, int reader) const {
  const Tensor& t = tensors_[at(tensor)];
  return !t.writers.empty() && t.writers.back() < reader && !t.backward_writes;
}

/// Returns the unit of each tensor. A unit is a set of tensors that can only be computed again together, because one
/// forward call writes several of them.
std::vector<int> Recomputation::units() const {
  Groups groups(tensors_.size());
  for (int c = 0; c < forward_; ++c) {
    for (const int t : uses_[at(c)].writes) {
      groups.join(t, uses_[at(c)].writes.front());
    }
  }
  std::vector<int> unit(tensors_.size());
  for (std::size_t t = 0; t < unit.size(); ++t) {
    unit[t] = groups.of(static_cast<int>(t));
  }
  return unit;
}

/// Proposes the tensors that calls of at most one operation per byte compute from tensors that backward reads anyway.
Proposal Recomputation::cheap() const {
  const std::vector<int> unit = units();
  std::map<int, std::vector<int>> members;
  for (std::size_t t = 0; t < unit.size(); ++t) {
    members[unit[t]].push_back(static_cast<int>(t));
  }
  // Pairs (last call that writes the unit, unit), ascending. So a unit comes after all units that its calls read.
  std::vector<std::pair<int, int>> order;
  for (const auto& [number, all] : members) {
    int last = -1;
    for (const int t : all) {
      last = tensors_[at(t)].writers.empty() ? last : std::max(last, tensors_[at(t)].writers.back());
    }
    order.emplace_back(last, number);
  }
  std::sort(order.begin(), order.end());
  std::vector<bool> possible(tensors_.size());
  // True for each tensor that a repeated call reads from memory; such a tensor must not be computed again itself.
  std::vector<bool> read(tensors_.size());
  for (const auto& [last, number] : order) {
    const std::vector<int>& all = members[number];
    std::set<int> calls;
    bool fits = true;
    for (const int t : all) {
      fits = fits && may_repeat(t) && !read[at(t)];
      calls.insert(tensors_[at(t)].writers.begin(), tensors_[at(t)].writers.end());
    }
    std::vector<int> kept;
    for (const int c : calls) {
      fits = fits && contents_.calls[at(c)].flops <= contents_.calls[at(c)].bytes;
      for (const int t : uses_[at(c)].reads) {
        const std::vector<int>& readers = tensors_[at(t)].readers;
        if (unit[at(t)] == number) {
          continue;
        }
        if (possible[at(t)]) {  // t is itself computed again, so only calls of this unit may read t
          fits =
              fits && std::all_of(readers.begin(), readers.end(), [&](int reader) { return calls.contains(reader); });
        } else {
          fits = fits && tensors_[at(t)].saved() && keeps_value(t, c);
          kept.push_back(t);
        }
      }
    }
    for (const int t : fits ? all : std::vector<int>{}) {
      possible[at(t)] = true;
    }
    for (const int t : fits ? kept : std::vector<int>{}) {
      read[at(t)] = true;
    }
  }
  return proposed(possible);
}

/// Returns true for each tensor that can be computed again within its segment. Two conditions must hold. Only calls of
/// the segment may use the tensor. The calls that write the tensor may read only tensors that are computed again too,
/// or tensors that still hold their value in backward. `segments` has the segment of each forward call, or -1 if the
/// call must not be repeated.
std::vector<bool> Recomputation::inside(const std::vector<int>& segments) const {
  std::vector<bool> possible(tensors_.size());
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    const Tensor& tensor = tensors_[t];
    if (!may_repeat(static_cast<int>(t))) {
      continue;
    }
    const int segment = segments[at(tensor.writers.front())];
    const auto here = [&](int call) { return segments[at(call)] == segment; };
    possible[t] = segment >= 0 && std::all_of(tensor.writers.begin(), tensor.writers.end(), here) &&
                  std::all_of(tensor.readers.begin(), tensor.readers.end(), here);
  }
  const auto available = [&](int tensor, int reader) {
    const Tensor& t = tensors_[at(tensor)];
    return possible[at(tensor)] ||
           (keeps_value(tensor, reader) && (t.saved() || segments[at(t.writers.back())] != segments[at(reader)]));
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (int c = 0; c < forward_; ++c) {
      const Use& use = uses_[at(c)];
      const auto is_possible = [&](int t) { return possible[at(t)]; };
      if (std::none_of(use.writes.begin(), use.writes.end(), is_possible) ||
          (std::all_of(use.writes.begin(), use.writes.end(), is_possible) &&
           std::all_of(use.reads.begin(), use.reads.end(), [&](int t) { return available(t, c); }))) {
        continue;
      }
      for (const int t : use.writes) {
        possible[at(t)] = false;
      }
      changed = true;
    }
  }
  return possible;
}

/// Cuts the forward calls into segments and returns the segment of each call. The length of a segment is the number of
/// bytes that its calls write and backward reads. A segment ends when its length is between distance / 2 and
/// `distance`. In this range, the cut is after the call for which later calls need the fewest bytes of earlier results.
std::vector<int> Recomputation::cut(double distance) const {
  std::vector<double> saved(at(forward_));
  for (const Tensor& tensor : tensors_) {
    if (!tensor.writers.empty() && tensor.saved()) {
      saved[at(tensor.writers.front())] += static_cast<double>(tensor.bytes);
    }
  }
  std::vector<int> segments(at(forward_));
  int segment = 0;
  int best = -1;
  double sum = 0;
  for (int c = 0; c < forward_; ++c) {
    segments[at(c)] = segment;
    sum += saved[at(c)];
    if (sum >= distance / 2 && (best < 0 || crossing_[at(c) + 1] <= crossing_[at(best) + 1])) {
      best = c;
    }
    if (sum >= distance) {
      c = best;
      ++segment;
      best = -1;
      sum = 0;
    }
  }
  return segments;
}

/// Makes two proposals for each of several lengths of segments (Chen et al. 2016, appendix A). In a proposal, each
/// segment computes again the tensors that backward reads and that only calls of this segment use, and all tensors of
/// the segment that are needed for this.
std::vector<Proposal> Recomputation::blocks() const {
  double saved = 0;
  for (const Tensor& tensor : tensors_) {
    saved += !tensor.writers.empty() && tensor.saved() ? static_cast<double>(tensor.bytes) : 0;
  }
  std::vector<Proposal> all;
  for (const int parts : {1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96}) {
    if (parts > forward_) {
      break;
    }
    std::vector<int> segments = cut(saved / parts);
    all.push_back(proposed(inside(segments)));
    // In the second proposal, the last segment is not repeated: its backward begins right after its forward, so
    // repeating it would free little memory.
    const int last = segments.back();
    std::replace(segments.begin(), segments.end(), last, -1);
    all.push_back(proposed(inside(segments)));
  }
  return all;
}

/// Makes a proposal that computes again only tensors for which `possible` is true: those that backward reads, and all
/// tensors that are needed to compute these.
Proposal Recomputation::proposed(const std::vector<bool>& possible) const {
  Proposal proposal{.again = std::vector<bool>(tensors_.size())};
  std::vector<int> open;
  const auto take = [&](int t) {
    if (possible[at(t)] && !proposal.again[at(t)]) {
      proposal.again[at(t)] = true;
      open.push_back(t);
    }
  };
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    if (tensors_[t].saved()) {
      take(static_cast<int>(t));
    }
  }
  while (!open.empty()) {
    const int t = open.back();
    open.pop_back();
    for (const int writer : tensors_[at(t)].writers) {
      std::for_each(uses_[at(writer)].writes.begin(), uses_[at(writer)].writes.end(), take);
      std::for_each(uses_[at(writer)].reads.begin(), uses_[at(writer)].reads.end(), take);
    }
  }
  proposal.order = ordered(proposal.again);
  add_lives(proposal);
  for (const Place& place : proposal.order) {
    proposal.flops += place.again ? contents_.calls[at(place.call)].flops : 0;
    proposal.moved += place.again ? contents_.calls[at(place.call)].bytes : 0;
  }
  return proposal;
}

std::vector<Place> Recomputation::ordered(const std::vector<bool>& again) const {
  // Two repeated calls are in one group if one of them reads a tensor that the other computes again.
  Groups groups(tensors_.size());
  const auto repeated = [&](int call) {
    const std::vector<int>& writes = uses_[at(call)].writes;
    return std::any_of(writes.begin(), writes.end(), [&](int t) { return again[at(t)]; });
  };
  std::map<int, std::vector<int>> calls;  // for each group, its repeated calls
  for (int c = 0; c < forward_; ++c) {
    if (repeated(c)) {
      for (const std::vector<int>* tensors : {&uses_[at(c)].writes, &uses_[at(c)].reads}) {
        for (const int t : *tensors) {
          if (again[at(t)]) {
            groups.join(t, uses_[at(c)].writes.front());
          }
        }
      }
    }
  }
  for (int c = 0; c < forward_; ++c) {
    if (repeated(c)) {
      calls[groups.of(uses_[at(c)].writes.front())].push_back(c);
    }
  }
  std::map<int, std::vector<int>> groups_before;  // for each backward call, the groups that are repeated just before it
  std::map<int, int> first_read;  // for each group, the first backward call that reads a tensor of the group
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    if (again[t] && tensors_[t].saved()) {
      int& first = first_read.try_emplace(groups.of(static_cast<int>(t)), tensors_[t].backward_read).first->second;
      first = std::min(first, tensors_[t].backward_read);
    }
  }
  for (const auto& [number, call] : first_read) {
    groups_before[call].push_back(number);
  }
  std::vector<Place> order;
  for (int c = 0; c < static_cast<int>(uses_.size()); ++c) {
    const auto found = c < forward_ ? groups_before.end() : groups_before.find(c);
    for (const int number : found == groups_before.end() ? std::vector<int>{} : found->second) {
      for (const int repeat : calls.at(number)) {
        order.push_back({repeat, true});
      }
    }
    order.push_back({c, false});
  }
  return order;
}

/// Adds the lifetimes of all tensors to `proposal`. A tensor that is computed again has two lifetimes.
void Recomputation::add_lives(Proposal& proposal) const {
  std::vector<Lifetime> lives(2 * tensors_.size(), {0, -1, -1});
  for (int i = 0; i < static_cast<int>(proposal.order.size()); ++i) {
    const Place& place = proposal.order[at(i)];
    const bool backward = place.again || place.call >= forward_;
    for (const std::vector<int>* tensors : {&uses_[at(place.call)].reads, &uses_[at(place.call)].writes}) {
      for (const int t : *tensors) {
        Lifetime& life = lives[2 * at(t) + (backward && proposal.again[at(t)] ? 1 : 0)];
        life.bytes = tensors_[at(t)].bytes;
        life.first = life.first < 0 ? i : life.first;
        life.last = i;
      }
    }
  }
  std::erase_if(lives, [](const Lifetime& life) { return life.first < 0; });
  std::vector<std::size_t> begins(proposal.order.size() + 1), ends(proposal.order.size() + 1);
  for (const Lifetime& life : lives) {
    begins[at(life.first)] += life.bytes;
    ends[at(life.last) + 1] += life.bytes;
  }
  std::size_t alive = 0;
  for (std::size_t i = 0; i < begins.size(); ++i) {
    alive += begins[i] - ends[i];
    proposal.most_alive = std::max(proposal.most_alive, alive);
  }
  proposal.lives = std::move(lives);
}

/// Sets SlotInfo::first and SlotInfo::last of each slot from the calls that touch the slot.
void count_lives(PlanContents& contents) {
  for (SlotInfo& slot : contents.slots) {
    slot.first = slot.last = -1;
  }
  for (int c = 0; c < static_cast<int>(contents.calls.size()); ++c) {
    for (const std::vector<SlotId>* slots : {&contents.calls[at(c)].reads, &contents.calls[at(c)].writes}) {
      for (const SlotId slot : *slots) {
        SlotInfo& info = contents.slots[at(slot.index)];
        info.first = info.first < 0 ? c : info.first;
        info.last = c;
      }
    }
  }
}

void apply(PlanContents& contents, const Recomputation& of, const Proposal& proposal) {
  const int slots = static_cast<int>(contents.slots.size());
  for (int i = 0; i < slots; ++i) {
    const int tensor = of.tensor_of(i);
    if (tensor < 0 || !proposal.again[at(tensor)]) {
      continue;
    }
    SlotInfo second = contents.slots[at(i)];
    // A slot precedes its aliases in the list. So SlotInfo::again of the aliased slot is already set here.
    second.alias_of = second.alias_of < 0 ? -1 : contents.slots[at(second.alias_of)].again;
    contents.slots[at(i)].again = static_cast<int>(contents.slots.size());
    contents.slots.push_back(std::move(second));
  }
  const auto in_backward = [&](std::vector<SlotId>& list) {
    for (SlotId& slot : list) {
      const int again = contents.slots[at(slot.index)].again;
      slot.index = again < 0 ? slot.index : again;
    }
  };
  std::vector<Call> calls;
  for (const Place& place : proposal.order) {
    Call call = contents.calls[at(place.call)];
    if (place.again) {
      call.op = "again " + call.op;
      call.backward = true;
      ++contents.recomputed.calls;
      contents.recomputed.flops += call.flops;
      contents.recomputed.bytes += call.bytes;
    }
    if (call.backward) {
      in_backward(call.reads);
      in_backward(call.writes);
    }
    calls.push_back(std::move(call));
  }
  contents.calls = std::move(calls);
  count_lives(contents);
}

}  // namespace

void recompute(PlanContents& contents, Recompute wanted) {
  require<UsageError>(wanted <= Recompute::blocks, "plan: recompute is ", static_cast<int>(wanted),
                      ", expected off, cheap or blocks");
  if (wanted == Recompute::off) {
    return;
  }
  const Recomputation of(contents);
  std::vector<Proposal> proposals = wanted == Recompute::blocks ? of.blocks() : std::vector<Proposal>{};
  proposals.push_back(of.cheap());
  std::stable_sort(proposals.begin(), proposals.end(),
                   [](const Proposal& a, const Proposal& b) { return a.most_alive < b.most_alive; });
  Proposal best = of.nothing();
  const std::size_t everything = best.bytes = plan_memory(best.lives, kAlignment).peak_bytes;
  contents.recomputed.workspace_bytes_without = everything;
  std::size_t least = everything;
  // Returns the largest workspace that is accepted. With `blocks`, a plan with fewer operations may take 2 % more than
  // the smallest workspace.
  const auto most = [&] { return wanted == Recompute::cheap ? least : std::min(least + least / 50, everything); };
  std::vector<Proposal> planned{best};
  for (Proposal& proposal : proposals) {
    if (proposal.most_alive <= most() && proposal.again != planned.back().again) {
      proposal.bytes = plan_memory(proposal.lives, kAlignment).peak_bytes;
      least = std::min(least, proposal.bytes);
      planned.push_back(std::move(proposal));
    }
  }
  bool found = false;
  for (Proposal& proposal : planned) {
    if (proposal.bytes <= most() &&
        (!found || std::pair(proposal.flops, proposal.moved) < std::pair(best.flops, best.moved))) {
      best = std::move(proposal);
      found = true;
    }
  }
  apply(contents, of, best);
}

}  // namespace lockstep::nn
