#include <lockstep/comm/flight_recorder.hpp>

#include <algorithm>
#include <iterator>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep::comm {

namespace {

// An operation is packed into 64 bits. These are the widths in bits of its kind, type, root rank and number of
// elements.
constexpr unsigned kKindBits = 4;
constexpr unsigned kTypeBits = 4;
constexpr unsigned kRootBits = 16;
constexpr unsigned kElementBits = 40;
static_assert(kKindBits + kTypeBits + kRootBits + kElementBits == 64);

constexpr std::uint64_t mask(unsigned bits) {
  return (std::uint64_t{1} << bits) - 1;
}

std::uint64_t packed(const IssuedOperation& o) {
  std::uint64_t word = static_cast<std::uint64_t>(o.elements) & mask(kElementBits);
  word = word << kRootBits | (static_cast<std::uint64_t>(o.root) & mask(kRootBits));
  word = word << kTypeBits | (static_cast<std::uint64_t>(o.dtype) & mask(kTypeBits));
  return word << kKindBits | (static_cast<std::uint64_t>(o.operation) & mask(kKindBits));
}

IssuedOperation unpacked(std::uint64_t word, std::int64_t at_ns) {
  const auto take = [&word](unsigned bits) {
    const std::uint64_t field = word & mask(bits);
    word >>= bits;
    return field;
  };
  IssuedOperation o;
  o.operation = static_cast<Operation>(take(kKindBits));
  o.dtype = static_cast<DType>(take(kTypeBits));
  o.root = static_cast<int>(take(kRootBits));
  o.elements = static_cast<std::int64_t>(word);
  o.at_ns = at_ns;
  return o;
}

/// Mixes the bits of `h` with the 64-bit finaliser of MurmurHash3 (Appleby 2011, public domain). A change of any input
/// bit changes about half of the output bits.
std::uint64_t mixed(std::uint64_t h) {
  h = (h ^ (h >> 33)) * 0xff51afd7ed558ccdULL;
  h = (h ^ (h >> 33)) * 0xc4ceb9fe1a85ec53ULL;
  return h ^ (h >> 33);
}

std::size_t place_of(std::int64_t number) {
  return static_cast<std::size_t>((number - 1) % FlightRecorder::kKept);
}

}  // namespace

std::string_view name_of(Operation operation) {
  static constexpr std::string_view kNames[] = {"all_reduce", "reduce_scatter", "all_gather", "all_to_all",
                                                "broadcast",  "barrier",        "split"};
  const auto number = static_cast<std::size_t>(operation);
  return number < std::size(kNames) ? kNames[number] : "unknown";  // a log in shared memory may hold any number
}

std::string IssuedOperation::text() const {
  if (operation == Operation::barrier || operation == Operation::split) {
    return std::string(name_of(operation));
  }
  return concat(name_of(operation), " of ", elements, ' ', dtype,
                operation == Operation::broadcast ? concat(" from rank ", root) : std::string());
}

void FlightRecorder::add(const IssuedOperation& operation) noexcept {
  const std::int64_t before = count_.load(std::memory_order_relaxed);
  const std::uint64_t hash = before == 0 ? 0 : entries_[place_of(before)].hash.load(std::memory_order_relaxed);
  const std::uint64_t what = packed(operation);
  Entry& entry = entries_[place_of(before + 1)];
  // The three stores below overwrite the oldest entry. Because of memory order `release`, a reader that sees one of the
  // new values also sees count_ >= `before`. From count_, at() then finds that the old entry is no longer valid.
  entry.what.store(what, std::memory_order_release);
  entry.hash.store(mixed(hash + mixed(what + 1)), std::memory_order_release);
  entry.at_ns.store(operation.at_ns, std::memory_order_release);
  count_.store(before + 1, std::memory_order_release);
}

std::optional<FlightRecorder::Kept> FlightRecorder::at(std::int64_t number) const noexcept {
  if (number < 1 || number > count()) {
    return std::nullopt;
  }
  const Entry& entry = entries_[place_of(number)];
  const std::uint64_t what = entry.what.load(std::memory_order_acquire);
  const std::uint64_t hash = entry.hash.load(std::memory_order_acquire);
  const std::int64_t at_ns = entry.at_ns.load(std::memory_order_acquire);
  // Entry `number` is not valid if it is the oldest one: add() may be overwriting it with the next operation.
  if (number <= count_.load(std::memory_order_relaxed) + 1 - kKept) {
    return std::nullopt;
  }
  return Kept{unpacked(what, at_ns), hash};
}

namespace {

/// Describes the first operation in which logs `a` and `b` differ. Their hashes of operation `last` must differ.
std::string difference(std::string_view communicator, const RankLog& a, const RankLog& b, std::int64_t last) {
  std::int64_t number = last;
  while (number > 1) {
    const auto of_a = a.log->at(number - 1);
    const auto of_b = b.log->at(number - 1);
    if (!of_a || !of_b) {
      return concat("ranks call different operations: those of ", communicator, " before number ", number,
                    " differ between rank ", a.rank, " and rank ", b.rank);
    }
    if (of_a->hash == of_b->hash) {
      break;
    }
    --number;
  }
  const auto of_a = a.log->at(number);
  const auto of_b = b.log->at(number);
  return concat("ranks call different operations: operation ", number, " of ", communicator, " is ",
                of_a ? of_a->operation.text() : "another", " on rank ", a.rank, " and ",
                of_b ? of_b->operation.text() : "another", " on rank ", b.rank);
}

}  // namespace

std::string first_difference(std::string_view communicator, std::span<const RankLog> ranks) {
  for (std::size_t i = 1; i < ranks.size(); ++i) {
    const RankLog& a = ranks.front();
    const RankLog& b = ranks[i];
    const std::int64_t last = std::min(a.log->count(), b.log->count());
    const auto of_a = a.log->at(last);
    const auto of_b = b.log->at(last);
    if (of_a && of_b && of_a->hash != of_b->hash) {
      return difference(communicator, a, b, last);
    }
  }
  return {};
}

std::string furthest_behind(std::string_view communicator, std::span<const RankLog> ranks) {
  const auto fewer = [](const RankLog& a, const RankLog& b) { return a.log->count() < b.log->count(); };
  const auto least = std::min_element(ranks.begin(), ranks.end(), fewer);
  const auto most = std::max_element(ranks.begin(), ranks.end(), fewer);
  if (least == ranks.end()) {
    return {};
  }
  const std::int64_t number = least->log->count() + 1;
  const auto missed = most->log->at(number);
  return missed ? concat("rank ", least->rank, " has not called operation ", number, " of ", communicator, ", ",
                         missed->operation.text(), ", as rank ", most->rank, " has")
                : std::string();
}

}  // namespace lockstep::comm
