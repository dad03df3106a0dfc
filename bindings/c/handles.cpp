#include <lockstep/c/handles.hpp>

#include <array>
#include <atomic>
#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep::c::detail {
namespace {

static_assert(sizeof(void*) == 8, "handles have 64 bits");

constexpr std::uint64_t kIndexBits = 24;
constexpr std::uint64_t kKindBits = 4;
constexpr std::uint64_t kSlotsAChunk = 1024;
constexpr std::uint64_t kChunks = (std::uint64_t{1} << kIndexBits) / kSlotsAChunk;

struct HandleEntry {
  std::atomic<std::uint64_t> handle = 0;  ///< valid handle of this entry; 0: no handle is valid
  std::uint64_t generation = 0;           ///< generation of the latest handle of this entry; guarded by Table::mutex
  std::shared_ptr<void> object;           ///< set before `handle` is set, and moved away after `handle` is reset to 0
};
using Chunk = std::array<HandleEntry, kSlotsAChunk>;

/// The entries of all handles of the process, in chunks. No chunk is moved or freed, so a lookup needs no lock.
struct Table {
  std::mutex mutex;
  std::array<std::atomic<Chunk*>, kChunks> chunks{};
  std::vector<std::uint64_t> unused;
  std::uint64_t slots = 0;
};

/// Returns the only Table. It is never destroyed, because a host program may use handles until the program ends.
Table& table() {
  static Table* const kTable = new Table;
  return *kTable;
}

constexpr std::uint64_t pack(std::uint64_t generation, HandleKind kind, std::uint64_t index) {
  return (generation << (kIndexBits + kKindBits)) | (static_cast<std::uint64_t>(kind) << kIndexBits) | index;
}

constexpr const char* name_of(HandleKind kind) {
  constexpr const char* kNames[] = {"handle", "context", "communicator", "model", "trainer", "tape"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::uint64_t number_of(const void* handle) {
  return static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(handle));
}

HandleEntry& find(HandleKind kind, const void* handle) {
  const std::uint64_t number = number_of(handle);
  require<UsageError>(number != 0, "the ", name_of(kind), " is NULL, expected a handle of lockstep");
  const std::uint64_t index = number & ((std::uint64_t{1} << kIndexBits) - 1);
  Chunk* chunk = table().chunks[index / kSlotsAChunk].load(std::memory_order_acquire);
  HandleEntry* slot = chunk != nullptr ? &(*chunk)[index % kSlotsAChunk] : nullptr;
  require<UsageError>(slot != nullptr && slot->handle.load(std::memory_order_acquire) == number, "the ", name_of(kind),
                      " is no handle of lockstep, or was destroyed, expected a live one");
  const auto found = static_cast<HandleKind>((number >> kIndexBits) & ((std::uint64_t{1} << kKindBits) - 1));
  require<UsageError>(found == kind, "the handle is a ", name_of(found), ", expected a ", name_of(kind));
  return *slot;
}

}  // namespace

void* add_handle(HandleKind kind, std::shared_ptr<void> object) {
  Table& all = table();
  const std::lock_guard lock(all.mutex);
  if (all.unused.empty()) {
    const std::uint64_t chunk = all.slots / kSlotsAChunk;
    require<OutOfMemory>(chunk < kChunks, "more than ", all.slots,
                         " handles are in use, expected some to be destroyed before");
    all.unused.reserve(all.slots + kSlotsAChunk);  // room for all entries, so that take_handle() allocates nothing
    all.chunks[chunk].store(new Chunk, std::memory_order_release);
    all.slots += kSlotsAChunk;
    for (std::uint64_t i = all.slots; i-- > chunk * kSlotsAChunk;) {
      all.unused.push_back(i);
    }
  }
  const std::uint64_t index = all.unused.back();
  all.unused.pop_back();
  HandleEntry& slot = (*all.chunks[index / kSlotsAChunk].load(std::memory_order_relaxed))[index % kSlotsAChunk];
  slot.object = std::move(object);
  const std::uint64_t number = pack(++slot.generation, kind, index);
  slot.handle.store(number, std::memory_order_release);
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(number));
}

const std::shared_ptr<void>& find_handle(HandleKind kind, const void* handle) {
  return find(kind, handle).object;
}

std::shared_ptr<void> take_handle(HandleKind kind, const void* handle) {
  HandleEntry& slot = find(kind, handle);
  std::uint64_t number = number_of(handle);
  require<UsageError>(slot.handle.compare_exchange_strong(number, 0), "the ", name_of(kind),
                      " was destroyed, expected a live one");
  std::shared_ptr<void> object = std::move(slot.object);
  slot.object.reset();
  Table& all = table();
  const std::lock_guard lock(all.mutex);
  all.unused.push_back(number_of(handle) & ((std::uint64_t{1} << kIndexBits) - 1));
  return object;
}

}  // namespace lockstep::c::detail
