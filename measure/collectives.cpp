#include "measure/collectives.hpp"

#include <algorithm>
#include <cstddef>

#include <lockstep/runtime/base/align.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/stream/graph.hpp>
#include <lockstep/runtime/tensor/copy.hpp>
#include <lockstep/runtime/tensor/tensor.hpp>

namespace lockstep::measure {
namespace {

constexpr std::int64_t kAlignment = 256;
constexpr std::string_view kNames[] = {"all_reduce", "reduce_scatter", "all_gather",
                                       "all_to_all", "broadcast",      "send_recv"};

/// Returns true if the larger tensor of the collective consists of one part per rank.
bool in_parts(Collective collective) {
  return collective == Collective::reduce_scatter || collective == Collective::all_gather ||
         collective == Collective::all_to_all;
}

/// Number of values that elements can have: 0, 1 and 2, whose sums over ranks are exact in every type.
constexpr int kNumbers = 3;
int number(int rank, std::int64_t i) {
  return static_cast<int>((rank + i) % kNumbers);
}

/// Returns the value that rank `mine` expects in element i of the result. `part` is the number of elements of one
/// rank's part of the larger tensor.
int expected(const CollectiveCase& item, int mine, int ranks, std::int64_t part, std::int64_t i) {
  const auto sum = [&](std::int64_t at) {
    int total = 0;
    for (int r = 0; r < ranks % kNumbers; ++r) {
      total += number(r, at);
    }
    // Any kNumbers consecutive ranks have each value once, so their sum is 0 + 1 + 2.
    return total + ranks / kNumbers * (kNumbers * (kNumbers - 1) / 2);
  };
  switch (item.collective) {
    case Collective::all_reduce:
      return sum(i);
    case Collective::reduce_scatter:
      return sum(mine * part + i);
    case Collective::all_gather:
      return number(static_cast<int>(i / part), i % part);
    case Collective::all_to_all:
      return number(static_cast<int>(i / part), mine * part + i % part);
    case Collective::broadcast:
      return number(0, i);
    case Collective::send_recv:
      break;
  }
  return 0;
}

}  // namespace

std::string_view name_of(Collective collective) {
  return kNames[static_cast<std::size_t>(collective)];
}

Collective parse_collective(std::string_view text) {
  for (const Collective collective : kCollectives) {
    if (name_of(collective) == text) {
      return collective;
    }
  }
  std::string names;
  for (const std::string_view name : kNames) {
    names += concat(names.empty() ? "" : ", ", name);
  }
  throw UsageError(concat("collective '", text, "' is not known, expected one of ", names));
}

bool is_sum(Collective collective) {
  return collective == Collective::all_reduce || collective == Collective::reduce_scatter;
}

std::optional<double> bus_factor(Collective collective, int ranks) {
  if (ranks < 2) {
    return std::nullopt;
  }
  const double share = static_cast<double>(ranks - 1) / ranks;
  if (collective == Collective::all_reduce) {
    return 2 * share;
  }
  return in_parts(collective) ? share : 1;
}

std::vector<CollectiveCase> collective_cases(const std::vector<Collective>& collectives,
                                             const std::vector<DType>& dtypes) {
  std::vector<CollectiveCase> cases;
  for (const Collective collective : collectives) {
    for (const DType dtype : dtypes) {
      if (is_sum(collective) && dtype == DType::u8) {
        continue;
      }
      if (!in_parts(collective) || collective == Collective::all_gather) {
        cases.push_back({collective, dtype, true});
      }
      if (in_parts(collective)) {
        cases.push_back({collective, dtype, false});
      }
    }
  }
  return cases;
}

std::int64_t collective_elements(const CollectiveCase& item, std::int64_t bytes, int ranks) {
  const std::int64_t unit = in_parts(item.collective) ? ranks : 1;
  const std::int64_t elements = bytes / static_cast<std::int64_t>(size_of(item.dtype));
  return std::max<std::int64_t>(elements / unit, 1) * unit;
}

struct CollectiveBench::Impl {
  comm::Communicator& communicator;
  Context& context;
  Stream& stream;
  std::int64_t pool_bytes;
  Tensor in;   // memory of the larger tensor, as bytes
  Tensor out;  // memory of the second tensor; made when a case needs one
  std::int64_t next = 0;
  bool turn = false;  // in send_recv: true if the rank with sends_first() sends in this call
  Graph graph;

  /// Returns n elements of a pool, from offset `next` on; both pools use the same offset.
  [[nodiscard]] TensorView at(const Tensor& pool, DType dtype, std::int64_t n) const {
    const std::int64_t bytes = n * static_cast<std::int64_t>(size_of(dtype));
    require<UsageError>(bytes <= pool.shape()[0], "collective of ", bytes, " bytes, expected at most ",
                        pool.shape()[0]);
    return {static_cast<std::byte*>(pool.view().data) + next, dtype, pool.device(), Shape{n}};
  }
  void make_out(const CollectiveCase& item) {
    if (!item.in_place && !(out.shape() == in.shape())) {
      out = Tensor::zeros(context, in.shape(), DType::u8);
      context.synchronize();
    }
  }
  /// Sets `next` to 0 if the next call would exceed the end of the pool. Calls may have different sizes.
  void make_room(std::int64_t bytes) {
    if (next + bytes > std::min(pool_bytes, in.shape()[0])) {
      next = 0;
    }
  }

  /// The tensors of one call: the input and the result.
  struct Views {
    TensorView in;
    TensorView out;
  };
  [[nodiscard]] Views views(const CollectiveCase& item, std::int64_t elements) const {
    const int ranks = communicator.size();
    const TensorView all = at(in, item.dtype, elements);
    switch (item.collective) {
      case Collective::reduce_scatter:
        return {all, at(out, item.dtype, elements / ranks)};
      case Collective::all_gather: {
        const std::int64_t part = elements / ranks;
        const std::int64_t mine = communicator.rank() * part;
        return item.in_place ? Views{all.slice(0, mine, mine + part), all} : Views{at(out, item.dtype, part), all};
      }
      case Collective::all_to_all:
        return {all, at(out, item.dtype, elements)};
      default:
        return {all, all};
    }
  }

  /// Returns the rank with which this rank exchanges messages in send_recv, or -1 if there is none.
  [[nodiscard]] int partner(const CollectiveCase& item) const {
    const int mine = communicator.rank();
    if (item.from >= 0) {
      return mine == item.from ? item.to : mine == item.to ? item.from : -1;
    }
    const int other = mine % 2 == 0 ? mine + 1 : mine - 1;
    return other < communicator.size() ? other : -1;
  }
  [[nodiscard]] bool sends_first(const CollectiveCase& item) const {
    return item.from >= 0 ? communicator.rank() == item.from : communicator.rank() % 2 == 0;
  }

  void enqueue(const CollectiveCase& item, const Views& views) { enqueue(communicator, item, views); }
  void enqueue(comm::Communicator& ranks, const CollectiveCase& item, const Views& views) {
    switch (item.collective) {
      case Collective::all_reduce:
        return ranks.all_reduce(stream, views.in);
      case Collective::reduce_scatter:
        return ranks.reduce_scatter(stream, views.in, views.out);
      case Collective::all_gather:
        return ranks.all_gather(stream, views.in, views.out);
      case Collective::all_to_all:
        return ranks.all_to_all(stream, views.in, views.out);
      case Collective::broadcast:
        return ranks.broadcast(stream, views.in, 0);
      case Collective::send_recv:
        break;
    }
    turn = !turn;
    const int other = partner(item);
    if (other < 0) {
      return;
    }
    if (sends_first(item) == turn) {
      ranks.send(stream, views.in, other);
    } else {
      ranks.recv(stream, views.in, other);
    }
  }

  void require_case(const CollectiveCase& item) const {
    require<UsageError>(!item.graph || (item.collective != Collective::send_recv && communicator.can_be_captured()),
                        name_of(item.collective), " of ", communicator.backend(),
                        " in a graph, expected another collective than send_recv, of NCCL");
  }

  /// Captures the operation in a graph. Runs the operation once before the capture: NCCL connects at its first use,
  /// which a capture does not allow.
  void capture(const CollectiveCase& item, const Views& views) {
    enqueue(item, views);
    stream.synchronize();
    graph = Graph::capture(stream, [&] { enqueue(item, views); });
    graph.upload(stream);
    stream.synchronize();
  }
};

CollectiveBench::CollectiveBench(comm::Communicator& communicator, Context& context, Stream& stream,
                                 std::int64_t max_bytes, std::int64_t pool_bytes) {
  require<UsageError>(max_bytes >= 1, "the largest collective is ", max_bytes, " bytes, expected at least 1");
  // A pool holds at least 8 bytes, one element of the largest type, for each rank.
  const std::int64_t least = std::int64_t{8} * communicator.size();
  const Shape pool{std::max({max_bytes, pool_bytes, least})};
  impl_ = std::make_unique<Impl>(
      Impl{communicator, context, stream, pool_bytes, Tensor::zeros(context, pool, DType::u8), {}});
  context.synchronize();
}

CollectiveBench::~CollectiveBench() = default;

std::string collective_name(const comm::Communicator& communicator, const Stream& stream, const CollectiveCase& item,
                            std::int64_t bytes) {
  const std::int64_t elements = collective_elements(item, bytes, communicator.size());
  std::string text = concat(name_of(item.collective), "/", communicator.backend(), "/", name_of(item.dtype),
                            item.in_place ? "/in_place" : "/out_of_place",
                            item.graph                                               ? "/graph"
                            : stream.device() == Device::cpu() && stream.is_inline() ? "/blocking"
                                                                                     : "/stream");
  if (item.from >= 0) {
    text += concat("/", item.from, "_with_", item.to);
  }
  return concat(text, "/", elements * static_cast<std::int64_t>(size_of(item.dtype)));
}

Work CollectiveBench::work(const CollectiveCase& item, std::int64_t bytes) {
  Impl* s = impl_.get();
  const std::int64_t elements = collective_elements(item, bytes, s->communicator.size());
  s->require_case(item);
  s->make_out(item);
  s->next = 0;
  s->turn = false;
  const Impl::Views first = s->views(item, elements);
  if (item.graph) {
    s->capture(item, first);
    return {.start = [s] { s->graph.launch(s->stream); }, .wait = [s] { s->stream.synchronize(); }, .prepare = {}};
  }
  const std::int64_t all = elements * static_cast<std::int64_t>(size_of(item.dtype));
  // `start` only updates pointers before the call, because small calls take less than a microsecond.
  const auto start = [s, item, all, first, now = first]() mutable {
    s->make_room(all);
    now.in.data = static_cast<std::byte*>(first.in.data) + s->next;
    now.out.data = static_cast<std::byte*>(first.out.data) + s->next;
    s->enqueue(item, now);
    s->next += align_up(all, kAlignment);
  };
  Work work{.start = start, .wait = {}, .prepare = {}};
  if (!s->stream.is_inline()) {
    work.wait = [s] { s->stream.synchronize(); };
  }
  return work;
}

Measurement CollectiveBench::measure(comm::Communicator& ranks, const CollectiveCase& item, std::int64_t bytes,
                                     const MeasureOptions& options) {
  const std::int64_t elements = collective_elements(item, bytes, impl_->communicator.size());
  Measurement result;
  result.bytes = elements * static_cast<std::int64_t>(size_of(item.dtype));
  result.name = collective_name(impl_->communicator, impl_->stream, item, bytes);
  result.payload_bytes = static_cast<double>(result.bytes);
  result.traffic_bytes = result.payload_bytes * bus_factor(item.collective, ranks.size()).value_or(0);
  result.samples = measure::measure(ranks, options, work(item, bytes));
  return result;
}

void CollectiveBench::check(const CollectiveCase& item, std::int64_t bytes) {
  Impl& s = *impl_;
  s.require_case(item);
  const int mine = s.communicator.rank();
  const int ranks = s.communicator.size();
  const std::int64_t elements = collective_elements(item, bytes, ranks);
  s.make_out(item);
  s.next = 0;
  s.turn = false;
  const Impl::Views views = s.views(item, elements);
  const std::int64_t part = in_parts(item.collective) ? elements / ranks : elements;
  const int other = item.collective == Collective::send_recv ? s.partner(item) : mine;
  if (item.collective == Collective::send_recv && other < 0) {
    return;  // this rank has no partner
  }
  const auto fill = [&](const TensorView& view, auto&& value) {
    visit_dtype(item.dtype, [&](auto type) {
      using T = typename decltype(type)::type;
      std::vector<T> values;
      values.reserve(static_cast<std::size_t>(view.numel()));
      for (std::int64_t i = 0; i < view.numel(); ++i) {
        values.push_back(T(static_cast<float>(value(i))));
      }
      copy(s.context, {std::span(values), view.shape}, view);
      s.context.synchronize();
    });
  };
  const auto require_values = [&](const TensorView& view, auto&& value) {
    visit_dtype(item.dtype, [&](auto type) {
      using T = typename decltype(type)::type;
      std::vector<T> values(static_cast<std::size_t>(view.numel()));
      copy(s.context, view, {std::span(values), view.shape});
      s.context.synchronize();
      for (std::int64_t i = 0; i < view.numel(); ++i) {
        const auto found = static_cast<double>(static_cast<float>(values[static_cast<std::size_t>(i)]));
        require<StateError>(found == value(i), collective_name(s.communicator, s.stream, item, bytes), ": element ", i,
                            " of rank ", mine, " is ", found, ", expected ", value(i));
      }
    });
  };
  if (item.graph) {
    s.capture(item, views);
  }
  fill(views.out, [](std::int64_t) { return 100; });
  fill(views.in, [&](std::int64_t i) { return number(mine, i); });
  item.graph ? s.graph.launch(s.stream) : s.enqueue(item, views);
  s.stream.synchronize();
  if (item.collective == Collective::send_recv) {
    const int sender = s.sends_first(item) ? mine : other;
    require_values(views.out, [&](std::int64_t i) { return number(sender, i); });
  } else {
    require_values(views.out, [&](std::int64_t i) { return expected(item, mine, ranks, part, i); });
  }
  fill(views.out, [](std::int64_t) { return 0; });
  fill(views.in, [](std::int64_t) { return 0; });
  s.turn = false;
}

std::optional<double> CollectiveBench::estimate(comm::NcclEstimator& estimator, const CollectiveCase& item,
                                                std::int64_t bytes) {
  if (item.collective == Collective::send_recv || item.collective == Collective::all_to_all) {
    return std::nullopt;  // NCCL has no estimate for send and receive, of which all_to_all consists, too
  }
  Impl& s = *impl_;
  s.make_out(item);
  s.next = 0;
  const Impl::Views views = s.views(item, collective_elements(item, bytes, s.communicator.size()));
  return estimator.seconds([&](comm::Communicator& planned) { s.enqueue(planned, item, views); });
}

}  // namespace lockstep::measure
