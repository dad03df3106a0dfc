#include "race_checker.hpp"

#if defined(LOCKSTEP_EMULATION_RACE)

#include <dlfcn.h>
#include <stdio.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <sstream>
#include <unordered_map>

namespace lockstep::emulation::race {

/// An address of atomic operations, and the accesses that they publish: a thread publishes its earlier accesses if it
/// calls a fence and then an atomic operation on this address.
struct Location {
  struct Release {
    std::uint64_t tick;
    unsigned thread;
    Block::Fence fence;
  };
  std::unordered_map<std::uint32_t, std::vector<Release>> blocks;  // key: Block::id
};

namespace {

enum class Kind : unsigned char { read, write, atomic };

/// One access, or several accesses of one kind by lanes of a warp, by warps of a block, or by blocks. `thread` and
/// `code` belong to the latest access.
struct Access {
  const void* code = nullptr;
  std::uint32_t block = 0;  // Block::id; 0: no access
  std::uint32_t phase = 0;
  std::uint32_t stamp = 0;  // largest Warp::time of the accesses
  std::uint32_t lanes = 0;
  std::uint16_t thread = 0;
  std::uint16_t fences = 0;  // largest number of fences that the threads had called
  bool atomic = false;
  bool warps = false;   // true if several warps made the accesses
  bool blocks = false;  // true if several blocks made the accesses
};

/// The latest accesses to some bytes: the last write or the atomic operations after it, and the reads since then.
struct Cell {
  Access write;
  Access read;
};

constexpr std::uintptr_t kPage = 4096;

/// The cells of one page of memory. A cell covers `grain` bytes.
struct Page {
  std::uintptr_t first = 0;  // address of the page
  std::uintptr_t begin = 0;  // address of the page's first watched byte
  std::uintptr_t end = 0;
  bool shared = false;
  std::uintptr_t grain = 4;
  std::vector<Cell> cells;

  Cell& cell(std::uintptr_t address) { return cells[(address - first) / grain]; }
  void split(std::uintptr_t finer) {
    std::vector<Cell> fine(kPage / finer);
    for (std::size_t i = 0; i < fine.size(); ++i) {
      fine[i] = cells[i * finer / grain];
    }
    cells = std::move(fine);
    grain = finer;
  }
};

struct Range {
  std::uintptr_t end;
  bool shared;
};

struct Found {
  bool any = false;
  bool outside = false;  // true if the address is in no shared variable
  Access now;
  Kind kind = Kind::read;
  std::size_t bytes = 0;
  Access before;
  bool before_read = false;
  std::uintptr_t address = 0;
  std::string variable;
};

struct State {
  Block* block = nullptr;  // block of the running thread
  unsigned thread = 0;
  std::uint32_t first_id = 1;  // first block id of this launch
  std::uint32_t next_id = 1;   // first block id of the next launch
  std::uint64_t tick = 0;
  std::uintptr_t lowest = ~std::uintptr_t{0};
  std::uintptr_t highest = 0;
  std::map<std::uintptr_t, Range> ranges;
  std::unordered_map<std::uintptr_t, std::unique_ptr<Page>> pages;
  struct Cached {
    std::uintptr_t number = 0;
    Page* page = nullptr;
  };
  std::array<Cached, 1024> cache;
  std::unordered_map<std::uintptr_t, Location> locations;
  // The accesses of each single block, for cells on which several blocks do atomic operations.
  std::unordered_map<const Cell*, std::unordered_map<std::uint32_t, Access>> by_block;
  Found found;
};

State& state() {
  static State it;
  return it;
}

// The state while this OS thread runs a kernel; otherwise nullptr. Host code in the kernels' files calls the functions
// below, too, and must not be checked.
constinit thread_local State* active = nullptr;

unsigned lane_of(unsigned thread) {
  return thread % 32;
}

/// Returns true if the fence of `release` comes after all accesses of a.
bool fenced(const Access& a, const Location::Release& release) {
  const Block::Fence& fence = release.fence;
  if (a.phase < fence.phase) {
    return true;
  }
  if (a.warps || a.phase != fence.phase || a.thread / 32 != release.thread / 32) {
    return false;
  }
  for (std::uint32_t left = a.lanes; left != 0; left &= left - 1) {
    const auto lane = static_cast<unsigned>(__builtin_ctz(left));
    const bool before = lane == lane_of(release.thread) ? a.fences < fence.count : a.stamp < fence.seen[lane];
    if (!before) {
      return false;
    }
  }
  return true;
}

/// Returns true if fences and atomic operations order a before the running thread's next access.
bool released(const State& s, const Access& a) {
  const Block& block = *s.block;
  for (const Block::Acquired& event : block.acquired) {
    const bool mine = event.thread == s.thread;
    const bool through_barrier = event.phase < block.phase;
    const bool through_warp = event.thread / 32 == s.thread / 32 &&
                              event.stamp < block.warps[s.thread / 32].seen[lane_of(s.thread)][lane_of(event.thread)];
    if (!mine && !through_barrier && !through_warp) {
      continue;
    }
    if (a.blocks) {  // the record has no block ids, so all other blocks must have released their accesses
      std::size_t others = 0;
      for (const auto& [id, releases] : event.location->blocks) {
        others += id != block.id ? 1 : 0;
      }
      if (others + 1 >= s.next_id - s.first_id) {
        return true;
      }
      continue;
    }
    const auto found = event.location->blocks.find(a.block);
    if (found == event.location->blocks.end()) {
      continue;
    }
    for (const Location::Release& release : found->second) {
      if (release.tick < event.tick && fenced(a, release)) {
        return true;
      }
    }
  }
  return false;
}

/// Returns true if all accesses of a are ordered before the running thread's next access.
bool ordered(const State& s, const Access& a) {
  if (a.block < s.first_id) {
    return true;
  }
  const Block& block = *s.block;
  if (a.block == block.id && !a.blocks) {
    if (a.phase < block.phase) {
      return true;
    }
    if (!a.warps && a.thread / 32 == s.thread / 32) {
      const unsigned lane = lane_of(s.thread);
      const auto& seen = block.warps[s.thread / 32].seen[lane];
      bool all = true;
      for (std::uint32_t left = a.lanes & ~(1u << lane); left != 0 && all; left &= left - 1) {
        all = a.stamp < seen[static_cast<unsigned>(__builtin_ctz(left))];
      }
      if (all) {
        return true;
      }
    }
  }
  return !block.acquired.empty() && released(s, a);
}

Access access_now(const State& s, Kind kind, const void* code) {
  const Block& block = *s.block;
  Access now;
  now.code = code;
  now.block = block.id;
  now.phase = block.phase;
  now.stamp = block.warps[s.thread / 32].time;
  now.lanes = 1u << lane_of(s.thread);
  now.thread = static_cast<std::uint16_t>(s.thread);
  if (!block.fences.empty()) {
    const auto fence = block.fences.find(s.thread);
    now.fences = fence != block.fences.end() ? fence->second.count : 0;
  }
  now.atomic = kind == Kind::atomic;
  return now;
}

/// Merges `set` and the access `now` into one record. The caller must know that `set` is not ordered before `now`.
Access joined(const Access& set, const Access& now) {
  Access all = now;
  all.blocks = set.blocks || set.block != now.block;
  all.warps = all.blocks || set.warps || set.thread / 32 != now.thread / 32;
  all.lanes |= set.lanes;
  all.stamp = std::max(set.stamp, now.stamp);
  all.fences = std::max(set.fences, now.fences);
  return all;
}

[[noreturn]] void report_race(State& s, const Access& now, Kind kind, std::uintptr_t address, std::size_t bytes,
                              const Access& before, bool before_read) {
  Found& found = s.found;
  found.any = true;
  found.outside = false;
  found.now = now;
  found.kind = kind;
  found.bytes = bytes;
  found.before = before;
  found.before_read = before_read;
  found.address = address;
  found.variable.clear();
  for (const SharedVariable& variable : *s.block->variables) {
    const auto begin = reinterpret_cast<std::uintptr_t>(variable.data);
    if (address >= begin && address < begin + variable.bytes) {
      found.variable = variable.name;
    }
  }
  give_up();
}

bool ordered_atomics(State& s, const Cell& cell) {
  if (!cell.write.blocks) {
    return ordered(s, cell.write);
  }
  if (cell.write.block < s.first_id) {
    return true;
  }
  for (const auto& [id, access] : s.by_block[&cell]) {
    if (!ordered(s, access)) {
      return false;
    }
  }
  return true;
}

void touch(State& s, Cell& cell, bool shared, const Access& now, Kind kind, std::uintptr_t address, std::size_t bytes) {
  if (shared) {  // accesses of an earlier block do not count in shared memory
    if (cell.write.block != now.block) {
      cell.write = Access();
    }
    if (cell.read.block != now.block) {
      cell.read = Access();
    }
  }
  Access& write = cell.write;
  const bool write_ordered = write.atomic ? ordered_atomics(s, cell) : ordered(s, write);
  if (!write_ordered && !(write.atomic && kind == Kind::atomic)) {
    const bool reset = kind == Kind::write && write.atomic && write.block == now.block && write.thread == now.thread;
    if (!reset) {
      report_race(s, now, kind, address, bytes, write, false);
    }
  }
  if (kind == Kind::read) {
    cell.read = ordered(s, cell.read) ? now : joined(cell.read, now);
    return;
  }
  if (!ordered(s, cell.read)) {
    report_race(s, now, kind, address, bytes, cell.read, true);
  }
  cell.read = Access();
  if (kind == Kind::write || write_ordered) {
    if (write.blocks) {
      s.by_block.erase(&cell);
    }
    write = now;
    return;
  }
  // Here `kind` is atomic. The earlier atomic operations are not ordered before it, but this is no race, so both are
  // kept.
  const Access all = joined(write, now);
  if (all.blocks) {
    auto& each = s.by_block[&cell];
    if (!write.blocks) {
      each.clear();
      each[write.block] = write;
    }
    Access& own = each[now.block];
    own = own.block == 0 || ordered(s, own) ? now : joined(own, now);
  }
  write = all;
}

void forget_cells(State& s, const Page& page) {
  if (!s.by_block.empty()) {
    for (const Cell& cell : page.cells) {
      s.by_block.erase(&cell);
    }
  }
}

Page* find_page(State& s, std::uintptr_t address) {
  const std::uintptr_t number = address / kPage;
  State::Cached& cached = s.cache[number % s.cache.size()];
  if (cached.number == number) {
    return cached.page;
  }
  Page* page = nullptr;
  if (const auto found = s.pages.find(number); found != s.pages.end()) {
    page = found->second.get();
  } else {
    const std::uintptr_t first = number * kPage;
    auto made = std::make_unique<Page>();
    for (auto range = s.ranges.lower_bound(first + kPage); range != s.ranges.begin();) {
      --range;
      if (range->second.end <= first) {
        break;
      }
      made->begin = std::max(range->first, first);
      made->end = std::max(made->end, std::min(range->second.end, first + kPage));
      made->shared = range->second.shared;
    }
    if (made->end != 0) {
      made->first = first;
      made->cells.resize(kPage / made->grain);
      page = made.get();
      s.pages.emplace(number, std::move(made));
    }
  }
  cached = {number, page};
  return page;
}

[[noreturn]] void report_outside(State& s, Kind kind, const void* code, std::uintptr_t address, std::size_t bytes) {
  s.found.any = true;
  s.found.outside = true;
  s.found.now = access_now(s, kind, code);
  s.found.kind = kind;
  s.found.bytes = bytes;
  s.found.address = address;
  s.found.variable.clear();
  std::uintptr_t least = ~std::uintptr_t{0};
  for (const SharedVariable& variable : *s.block->variables) {
    const auto begin = reinterpret_cast<std::uintptr_t>(variable.data);
    const std::uintptr_t away = address < begin ? begin - address : address + bytes - (begin + variable.bytes);
    if (away < least) {
      least = away;
      std::ostringstream out;
      out << (address < begin ? "starts " : "ends ") << away
          << (address < begin ? " bytes before '" : " bytes past the end of '") << variable.name << "' ("
          << variable.bytes << " bytes, " << variable.place.file << ':' << variable.place.line << ')';
      s.found.variable = out.str();
    }
  }
  give_up();
}

bool in_variable(const State& s, std::uintptr_t address, std::size_t bytes) {
  for (const SharedVariable& variable : *s.block->variables) {
    const auto begin = reinterpret_cast<std::uintptr_t>(variable.data);
    if (address >= begin && address + bytes <= begin + variable.bytes) {
      return true;
    }
  }
  return false;
}

/// Turns the checker off while it calls library functions. The linker may have chosen instrumented instances of these
/// functions, which would call the checker again.
class Quiet {
 public:
  Quiet() : was_(active) { active = nullptr; }
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;
  ~Quiet() { active = was_; }

 private:
  State* was_;
};

void check(State& s, const void* where, std::size_t bytes, Kind kind, const void* code) {
  auto address = reinterpret_cast<std::uintptr_t>(where);
  if (address >= s.highest || address + bytes <= s.lowest) {
    return;
  }
  const std::uintptr_t end = address + bytes;
  const std::uintptr_t start = address;
  Access now;
  bool known = false;
  while (address < end) {
    Page* page = find_page(s, address);
    const std::uintptr_t stop = std::min(end, (address / kPage + 1) * kPage);
    if (page == nullptr || stop <= page->begin || address >= page->end) {
      address = stop;
      continue;
    }
    if (page->shared && !in_variable(s, start, bytes)) {
      report_outside(s, kind, code, start, bytes);
    }
    if (!known) {
      now = access_now(s, kind, code);
      known = true;
    }
    const std::uintptr_t last = std::min(stop, page->end);
    address = std::max(address, page->begin);
    while ((address | last) % page->grain != 0) {
      forget_cells(s, *page);
      page->split(page->grain / 2);
    }
    for (; address < last; address += page->grain) {
      touch(s, page->cell(address), page->shared, now, kind, address, bytes);
    }
    address = stop;
  }
}

void access(const void* where, std::size_t bytes, Kind kind, const void* code) {
  if (State* const s = active; s != nullptr) {
    const Quiet quiet;
    check(*s, where, bytes, kind, code);
  }
}

}  // namespace

void start_launch(std::uint64_t blocks) {
  State& s = state();
  if (s.next_id > 0xFFFFFFFFu - blocks) {  // no ids left: drops all records and begins again at 1
    s.pages.clear();
    s.cache = {};
    s.next_id = 1;
  }
  s.first_id = s.next_id;
  s.next_id += static_cast<std::uint32_t>(blocks);
  s.locations.clear();
  s.by_block.clear();
  s.found = Found();
}

void end_launch() {
  State& s = state();
  s.block = nullptr;
  s.locations.clear();
  s.by_block.clear();
}

void start_block(Block& block, std::uint32_t number, unsigned threads, std::vector<SharedVariable>* variables) {
  block.number = number;
  block.id = state().first_id + number;
  block.phase = 0;
  block.warps.resize((threads + 31) / 32);
  for (Block::Warp& warp : block.warps) {
    warp.time = 0;
    for (auto& lane : warp.seen) {
      lane.fill(0);
    }
  }
  block.fences.clear();
  block.acquired.clear();
  block.variables = variables;
}

void block_barrier(Block& block) {
  ++block.phase;
}

void sync_warp(Block& block, unsigned warp_number, unsigned lanes) {
  const Quiet quiet;
  Block::Warp& warp = block.warps[warp_number];
  ++warp.time;
  std::array<std::uint32_t, 32> all = {};
  for (unsigned left = lanes; left != 0; left &= left - 1) {
    const auto& seen = warp.seen[static_cast<unsigned>(__builtin_ctz(left))];
    for (unsigned other = 0; other < 32; ++other) {
      all[other] = std::max(all[other], seen[other]);
    }
  }
  for (unsigned left = lanes; left != 0; left &= left - 1) {
    all[static_cast<unsigned>(__builtin_ctz(left))] = warp.time;
  }
  for (unsigned left = lanes; left != 0; left &= left - 1) {
    warp.seen[static_cast<unsigned>(__builtin_ctz(left))] = all;
  }
}

void fence(Block& block, unsigned thread) {
  const Quiet quiet;
  Block::Fence& fence = block.fences[thread];
  fence.count = static_cast<std::uint16_t>(std::min<int>(fence.count + 1, 0xFFFF));
  fence.phase = block.phase;
  fence.seen = block.warps[thread / 32].seen[lane_of(thread)];
}

void atomic(const void* address, std::size_t bytes, const void* code) {
  const Quiet quiet;
  State& s = state();
  check(s, address, bytes, Kind::atomic, code);
  Block& block = *s.block;
  const auto key = reinterpret_cast<std::uintptr_t>(address);
  const auto location = s.locations.find(key);
  if (location != s.locations.end()) {
    const Block::Acquired event = {&location->second, ++s.tick, block.phase, block.warps[s.thread / 32].time, s.thread};
    const auto same = std::find_if(block.acquired.begin(), block.acquired.end(), [&](const Block::Acquired& one) {
      return one.location == event.location && one.thread == event.thread && one.phase == event.phase &&
             one.stamp == event.stamp;
    });
    if (same != block.acquired.end()) {
      same->tick = event.tick;
    } else {
      block.acquired.push_back(event);
    }
  }
  if (const auto fence = block.fences.find(s.thread); fence != block.fences.end()) {
    s.locations[key].blocks[block.id].push_back({++s.tick, s.thread, fence->second});
  }
}

void resume(Block* block, unsigned thread) {
  State& s = state();
  s.block = block;
  s.thread = thread;
  active = block != nullptr ? &s : nullptr;
}

void watch(const void* begin, std::size_t bytes, bool shared) {
  State& s = state();
  const auto first = reinterpret_cast<std::uintptr_t>(begin);
  forget(begin, bytes);
  if (bytes == 0) {
    return;
  }
  s.ranges[first] = {first + bytes, shared};
  for (const std::uintptr_t edge : {first / kPage, (first + bytes - 1) / kPage}) {
    s.pages.erase(edge);  // another range of memory on the same page may have created the record
  }
  s.cache = {};
  s.lowest = std::min(s.lowest, first);
  s.highest = std::max(s.highest, first + bytes);
}

void forget(const void* begin, std::size_t bytes) {
  State& s = state();
  const auto first = reinterpret_cast<std::uintptr_t>(begin);
  if (s.ranges.erase(first) == 0) {
    return;
  }
  const std::uintptr_t last = (first + bytes + kPage - 1) / kPage;
  if (s.pages.size() < last - first / kPage) {
    std::erase_if(s.pages, [&](const auto& page) { return page.first >= first / kPage && page.first < last; });
  } else {
    for (std::uintptr_t number = first / kPage; number < last; ++number) {
      s.pages.erase(number);
    }
  }
  s.cache = {};
}

std::string source_line(const void* code) {
  // code is a return address. The address before it belongs to the line of the call.
  const auto address = reinterpret_cast<std::uintptr_t>(code) - 1;
  Dl_info info = {};
  if (dladdr(reinterpret_cast<const void*>(address), &info) == 0 || info.dli_fname == nullptr) {
    return "an unknown place";
  }
  std::ostringstream offset;
  offset << std::hex << "0x" << address - reinterpret_cast<std::uintptr_t>(info.dli_fbase);
  // addr2line -i lists the inlined functions at the address, innermost first. The kernel's line is the first line
  // outside of the headers of the emulation and of CUDA.
  const std::string command = "addr2line -i -e '" + std::string(info.dli_fname) + "' " + offset.str() + " 2>/dev/null";
  std::string first;
  if (FILE* pipe = popen(command.c_str(), "r"); pipe != nullptr) {
    char line[1024];
    std::string chosen;
    while (fgets(line, sizeof(line), pipe) != nullptr) {
      std::string entry(line, std::strcspn(line, "\n"));
      entry = entry.substr(0, entry.find(" (discriminator"));
      if (first.empty()) {
        first = entry;
      }
      const auto in = [&](const char* part) { return entry.find(part) != std::string::npos; };
      if (chosen.empty() && !in("emulation/device") && !in("/cuda_fp16.") && !in("/cuda_bf16.") &&
          !in("/vector_functions.")) {
        chosen = entry;
      }
    }
    pclose(pipe);
    if (!chosen.empty()) {
      first = chosen;
    }
  }
  if (first.empty() || first[0] == '?') {
    first = std::string(info.dli_sname != nullptr ? info.dli_sname : info.dli_fname) + " + " + offset.str();
  }
  return first;
}

std::string report(std::string (*thread_name)(std::uint64_t, unsigned)) {
  const State& s = state();
  const Found& found = s.found;
  if (!found.any) {
    return {};
  }
  const auto line = [&](const Access& access, const char* what) {
    std::ostringstream out;
    out << what << " by " << thread_name(access.block - s.first_id, access.thread) << " after " << access.phase
        << " barriers, " << source_line(access.code);
    return out.str();
  };
  const char* const kinds[] = {"read", "write", "atomic operation"};
  const char* const now = kinds[static_cast<int>(found.kind)];
  std::ostringstream out;
  if (found.outside) {
    out << "shared memory overrun: " << line(found.now, now) << ", " << found.bytes << " bytes, "
        << (found.variable.empty() ? "is in no variable of the block" : found.variable);
    return out.str();
  }
  out << "data race on ";
  if (found.variable.empty()) {
    auto range = s.ranges.upper_bound(found.address);
    if (range != s.ranges.begin()) {
      --range;
      out << "byte " << found.address - range->first << " of the device memory at "
          << reinterpret_cast<const void*>(range->first);
    }
  } else {
    out << "shared '" << found.variable << "'";
  }
  const char* const before = found.before_read ? "read" : found.before.atomic ? "atomic operation" : "write";
  out << ": nothing orders\n  " << line(found.before, before) << "\n  " << line(found.now, now);
  return out.str();
}

}  // namespace lockstep::emulation::race

// ---- Functions that instrumented code calls ----

namespace {
using lockstep::emulation::race::access;
using lockstep::emulation::race::Kind;
}  // namespace

#define LOCKSTEP_ACCESS(name, bytes, kind)                           \
  void __tsan_##name(void* address) {                                \
    access(address, bytes, Kind::kind, __builtin_return_address(0)); \
  }
#define LOCKSTEP_ACCESSES(bytes)                                 \
  LOCKSTEP_ACCESS(read##bytes, bytes, read)                      \
  LOCKSTEP_ACCESS(write##bytes, bytes, write)                    \
  LOCKSTEP_ACCESS(unaligned_read##bytes, bytes, read)            \
  LOCKSTEP_ACCESS(unaligned_write##bytes, bytes, write)          \
  LOCKSTEP_ACCESS(volatile_read##bytes, bytes, read)             \
  LOCKSTEP_ACCESS(volatile_write##bytes, bytes, write)           \
  LOCKSTEP_ACCESS(unaligned_volatile_read##bytes, bytes, read)   \
  LOCKSTEP_ACCESS(unaligned_volatile_write##bytes, bytes, write) \
  LOCKSTEP_ACCESS(read_write##bytes, bytes, write)               \
  LOCKSTEP_ACCESS(unaligned_read_write##bytes, bytes, write)

// before_atomic() already checks the kernel's atomic operations. So these functions only perform the operation, for
// kernels and for host code in the kernels' files.
#define LOCKSTEP_UPDATE(bits, type, name, operation)                           \
  type __tsan_atomic##bits##_##name(volatile type* address, type value, int) { \
    return operation;                                                          \
  }
#define LOCKSTEP_ATOMICS(bits, type)                                                                                  \
  type __tsan_atomic##bits##_load(const volatile type* address, int) {                                                \
    return __atomic_load_n(address, __ATOMIC_SEQ_CST);                                                                \
  }                                                                                                                   \
  void __tsan_atomic##bits##_store(volatile type* address, type value, int) {                                         \
    __atomic_store_n(address, value, __ATOMIC_SEQ_CST);                                                               \
  }                                                                                                                   \
  LOCKSTEP_UPDATE(bits, type, exchange, __atomic_exchange_n(address, value, __ATOMIC_SEQ_CST))                        \
  LOCKSTEP_UPDATE(bits, type, fetch_add, __atomic_fetch_add(address, value, __ATOMIC_SEQ_CST))                        \
  LOCKSTEP_UPDATE(bits, type, fetch_sub, __atomic_fetch_sub(address, value, __ATOMIC_SEQ_CST))                        \
  LOCKSTEP_UPDATE(bits, type, fetch_and, __atomic_fetch_and(address, value, __ATOMIC_SEQ_CST))                        \
  LOCKSTEP_UPDATE(bits, type, fetch_or, __atomic_fetch_or(address, value, __ATOMIC_SEQ_CST))                          \
  LOCKSTEP_UPDATE(bits, type, fetch_xor, __atomic_fetch_xor(address, value, __ATOMIC_SEQ_CST))                        \
  LOCKSTEP_UPDATE(bits, type, fetch_nand, __atomic_fetch_nand(address, value, __ATOMIC_SEQ_CST))                      \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile type* address, type* expected, type wanted, int, int) {  \
    return __atomic_compare_exchange_n(address, expected, wanted, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST) ? 1 : 0; \
  }                                                                                                                   \
  int __tsan_atomic##bits##_compare_exchange_weak(volatile type* address, type* expected, type wanted, int, int) {    \
    return __atomic_compare_exchange_n(address, expected, wanted, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST) ? 1 : 0; \
  }                                                                                                                   \
  type __tsan_atomic##bits##_compare_exchange_val(volatile type* address, type expected, type wanted, int, int) {     \
    __atomic_compare_exchange_n(address, &expected, wanted, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);               \
    return expected;                                                                                                  \
  }

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}

LOCKSTEP_ACCESSES(1)
LOCKSTEP_ACCESSES(2)
LOCKSTEP_ACCESSES(4)
LOCKSTEP_ACCESSES(8)
LOCKSTEP_ACCESSES(16)

void __tsan_read_range(void* address, std::size_t bytes) {
  access(address, bytes, Kind::read, __builtin_return_address(0));
}
void __tsan_write_range(void* address, std::size_t bytes) {
  access(address, bytes, Kind::write, __builtin_return_address(0));
}
void __tsan_vptr_read(void**) {}
void __tsan_vptr_update(void**, void*) {}

void* __tsan_memcpy(void* to, const void* from, std::size_t bytes) {
  access(from, bytes, Kind::read, __builtin_return_address(0));
  access(to, bytes, Kind::write, __builtin_return_address(0));
  return std::memcpy(to, from, bytes);
}
void* __tsan_memmove(void* to, const void* from, std::size_t bytes) {
  access(from, bytes, Kind::read, __builtin_return_address(0));
  access(to, bytes, Kind::write, __builtin_return_address(0));
  return std::memmove(to, from, bytes);
}
void* __tsan_memset(void* to, int value, std::size_t bytes) {
  access(to, bytes, Kind::write, __builtin_return_address(0));
  return std::memset(to, value, bytes);
}

LOCKSTEP_ATOMICS(8, unsigned char)
LOCKSTEP_ATOMICS(16, unsigned short)
LOCKSTEP_ATOMICS(32, unsigned int)
LOCKSTEP_ATOMICS(64, unsigned long)
void __tsan_atomic_thread_fence(int) {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
void __tsan_atomic_signal_fence(int) {}

}  // extern "C"

#endif
