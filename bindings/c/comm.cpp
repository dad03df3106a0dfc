#include <lockstep/c/comm.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <lockstep/c/arguments.hpp>
#include <lockstep/c/entry.hpp>
#include <lockstep/c/handles.hpp>
#include <lockstep/comm/callback/callback_communicator.hpp>
#include <lockstep/comm/gpu_communicator.hpp>
#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/comm/local/local_communicator.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/tensor/tensor_view.hpp>

namespace lockstep::c {
namespace {

constexpr std::size_t kOldestOps = sizeof(lockstep_comm_ops);

/// Gathers `mine` from every rank. Returns the numbers of rank 0, then the numbers of rank 1, and so on. Collective.
std::vector<std::int64_t> gather(comm::Communicator& communicator, std::span<std::int64_t> mine) {
  std::vector<std::int64_t> all(mine.size() * static_cast<std::size_t>(communicator.size()));
  Stream stream = Stream::host_inline();
  communicator.all_gather(stream, TensorView(mine, {static_cast<std::int64_t>(mine.size())}),
                          TensorView(std::span(all), {static_cast<std::int64_t>(all.size())}));
  return all;
}

/// The functions of the host program's communicator. The destructor calls ops.destroy() if `owned` is true.
struct HostOps {
  lockstep_comm_ops ops{};
  bool owned = false;  ///< true: the destructor calls ops.destroy()

  HostOps() = default;
  HostOps(const HostOps&) = delete;
  HostOps& operator=(const HostOps&) = delete;
  ~HostOps() {
    if (owned && ops.destroy != nullptr) {
      try {
        const InCallback here;
        ops.destroy(ops.user);
      } catch (...) {  // nothing to do: a destructor cannot report the error
      }
    }
  }

  [[nodiscard]] std::string text() const {
    const char* said = ops.error_text != nullptr ? ops.error_text(ops.user) : nullptr;
    return said != nullptr ? concat(": ", said) : std::string();
  }

  template <class Function, class... Arguments>
  void call(const char* name, Function function, Arguments... arguments) const {
    std::int32_t result = 0;
    std::string why;
    try {
      const InCallback here;
      result = function(ops.user, arguments...);
      if (result != 0) {
        why = text();
      }
    } catch (...) {
      throw PeerError(concat("the host program's ", name, " threw an exception, expected a number"));
    }
    const std::string said =
        result == 0 ? std::string() : concat("the host program's ", name, " returned ", result, why);
    require<CudaError>(result != LOCKSTEP_ERR_CUDA, said);
    require<NcclError>(result != LOCKSTEP_ERR_NCCL, said);
    require<MpiError>(result != LOCKSTEP_ERR_MPI, said);
    require<StateError>(result != LOCKSTEP_ERR_STATE, why.empty() ? said : concat(name, why));
    require<PeerError>(result == 0, said);
  }
};

std::unique_ptr<comm::Communicator> communicator_of(const std::shared_ptr<HostOps>& host) {
  const lockstep_comm_ops& ops = host->ops;
  comm::HostCollectives functions{
      .rank = ops.rank, .size = ops.size, .all_reduce = {}, .broadcast = {}, .all_gather = {}, .barrier = {}};
  if (ops.all_reduce_sum != nullptr) {
    functions.all_reduce = [host](const TensorView& data) {
      host->call("all_reduce_sum", host->ops.all_reduce_sum, data.data, data.numel(), to_c(data.dtype));
    };
  }
  if (ops.broadcast != nullptr) {
    functions.broadcast = [host](void* data, std::size_t bytes, int root) {
      host->call("broadcast", host->ops.broadcast, data, static_cast<std::int64_t>(bytes),
                 static_cast<std::int32_t>(root));
    };
  }
  if (ops.all_gather != nullptr) {
    functions.all_gather = [host](const void* in, void* out, std::size_t bytes) {
      host->call("all_gather", host->ops.all_gather, in, out, static_cast<std::int64_t>(bytes));
    };
  }
  if (ops.barrier != nullptr) {
    functions.barrier = [host] { host->call("barrier", host->ops.barrier); };
  }
  return comm::make_callback_communicator(std::move(functions));
}

/// Throws UsageError on every rank unless all_gather() gathers in rank order and all ranks state the same number of
/// ranks. Collective.
void require_ranks_fit(comm::Communicator& communicator) {
  std::int64_t mine[] = {communicator.rank(), communicator.size()};
  const std::vector<std::int64_t> all = gather(communicator, mine);
  for (int r = 0; r < communicator.size(); ++r) {
    const std::int64_t rank = all[2 * static_cast<std::size_t>(r)];
    const std::int64_t size = all[2 * static_cast<std::size_t>(r) + 1];
    require<UsageError>(rank == r && size == communicator.size(), "ops: place ", r, " of ", communicator.size(),
                        " is held by rank ", rank, " of ", size, ", expected rank ", r, " of ", communicator.size());
  }
}

}  // namespace

void agree(comm::Communicator& communicator, const std::exception_ptr& failure, std::uint64_t must_be_equal,
           const char* what) {
  if (communicator.size() > 1) {
    // mine[0] holds the status in the lowest byte, and a hash of the entry's name in the other bytes.
    const std::uint64_t status = failure != nullptr ? static_cast<std::uint64_t>(failure_of(failure).status) : 0;
    std::int64_t mine[] = {static_cast<std::int64_t>((number_of(current_entry()) << 8U) | status),
                           static_cast<std::int64_t>(must_be_equal)};
    std::vector<std::int64_t> all = gather(communicator, mine);
    int failed = -1;
    int odd = -1;
    int elsewhere = -1;
    for (int r = communicator.size(); r-- > 0;) {
      std::int64_t& word = all[2 * static_cast<std::size_t>(r)];
      elsewhere = (word ^ all[0]) >> 8 != 0 ? r : elsewhere;
      odd = all[2 * static_cast<std::size_t>(r) + 1] != all[1] ? r : odd;
      word &= 0xFF;
      failed = word != LOCKSTEP_OK ? r : failed;
    }
    if (elsewhere >= 0) {
      const std::vector<std::string> names = comm::all_gather_text(communicator, current_entry());
      throw StateError(concat("agreed: rank 0 calls ", names[0], ", rank ", elsewhere, ' ',
                              names[static_cast<std::size_t>(elsewhere)],
                              ", expected the same calls in the same order on all ranks"));
    }
    if (failed >= 0) {
      const std::string text = comm::broadcast_text(
          communicator, communicator.rank() == failed ? std::string(failure_of(failure).text) : std::string(), failed);
      require<PeerError>(failure != nullptr, "agreed: rank ", failed, ": ",
                         lockstep_status_name(static_cast<lockstep_status>(all[2 * static_cast<std::size_t>(failed)])),
                         ": ", text);
    } else {
      require<UsageError>(odd < 0, what, " differs between rank 0 and rank ", odd, ", expected the same on all ranks");
    }
  }
  if (failure != nullptr) {
    std::rethrow_exception(failure);
  }
}

std::uint64_t number_of(std::string_view text) {
  std::uint64_t number = 0xCBF29CE484222325U;
  for (const char letter : text) {
    number = (number ^ static_cast<unsigned char>(letter)) * 0x100000001B3U;
  }
  return number;
}

std::uint64_t root_of(std::int32_t root, const comm::Communicator& communicator) {
  require<UsageError>(root >= 0 && root < communicator.size(), "root is ", root, ", expected 0 to ",
                      communicator.size() - 1);
  return static_cast<std::uint64_t>(root);
}

std::int64_t largest_of_ranks(comm::Communicator& communicator, std::int64_t value) {
  std::int64_t mine[] = {value};
  const std::vector<std::int64_t> all = gather(communicator, mine);
  return *std::max_element(all.begin(), all.end());
}

}  // namespace lockstep::c

using namespace lockstep;
using namespace lockstep::c;

lockstep_status lockstep_comm_self(lockstep_context context, lockstep_comm* comm) noexcept {
  return entry("lockstep_comm_self", [&] {
    given(comm, "comm") = nullptr;
    *comm = make_handle<lockstep_comm>(
        std::make_shared<CommObject>(CommObject{share_of(context), comm::LocalGroup(1).communicator(0)}));
  });
}

lockstep_status lockstep_comm_from_ops(lockstep_context context, const lockstep_comm_ops* ops,
                                       lockstep_comm* comm) noexcept {
  return entry("lockstep_comm_from_ops", [&] {
    static_cast<void>(given(ops, "ops"));
    const auto host = std::make_shared<HostOps>();
    host->ops = read_options(ops, {}, kOldestOps, "ops");
    require<UnsupportedError>(host->ops.flags == 0, "ops: flags is ", host->ops.flags, ", expected 0");
    auto made = std::make_shared<CommObject>(CommObject{nullptr, communicator_of(host)});
    require_ranks_fit(*made->communicator);
    agree_on(*made->communicator, [&] {
      given(comm, "comm") = nullptr;
      made->context = share_of(context);
    });
    *comm = make_handle<lockstep_comm>(std::move(made));
    host->owned = true;
  });
}

lockstep_status lockstep_comm_from_nccl(lockstep_context context, void* nccl_comm, lockstep_comm control,
                                        lockstep_comm* comm) noexcept {
  return entry("lockstep_comm_from_nccl", [&] {
    const std::shared_ptr<CommObject> ranks = share_of(control);
    auto made = std::make_shared<CommObject>();
    made->communicator = {ranks, ranks->communicator.get()};  // keeps `ranks` alive
    agree_on(*made->communicator, [&] {
      given(comm, "comm") = nullptr;
      made->context = share_of(context);
    });
    made->gpus = comm::adopt_nccl_communicator(nccl_comm, *made->communicator, made->context->device());
    *comm = make_handle<lockstep_comm>(std::move(made));
  });
}

lockstep_status lockstep_comm_rank(lockstep_comm comm, int32_t* rank, int32_t* size) noexcept {
  return entry("lockstep_comm_rank", [&] {
    const comm::Communicator& communicator = *object_of(comm).communicator;
    given(rank, "rank") = communicator.rank();
    given(size, "size") = communicator.size();
  });
}

lockstep_status lockstep_comm_agree(lockstep_comm comm, int32_t mine, int32_t* largest) noexcept {
  return entry("lockstep_comm_agree", [&] {
    comm::Communicator& communicator = *object_of(comm).communicator;
    agree_on(communicator, [&] { static_cast<void>(given(largest, "largest")); });
    *largest = static_cast<std::int32_t>(largest_of_ranks(communicator, mine));
  });
}

lockstep_status lockstep_comm_destroy(lockstep_comm comm) noexcept {
  return entry("lockstep_comm_destroy", [&] { destroy(comm); });
}
