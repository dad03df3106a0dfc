#include <lockstep/comm/gpu_communicator.hpp>

#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include <dlfcn.h>

#include <lockstep/comm/error.hpp>
#include <lockstep/comm/host_exchange.hpp>
#include <lockstep/comm/nccl/nccl_exchange.hpp>
#include <lockstep/runtime/base/error.hpp>

// This file finds NCCL's functions with dlsym(), so a program that only adopts communicators need not be linked with
// NCCL.

namespace lockstep::comm {
namespace {

/// NCCL's functions for exchanges and for describing a communicator, from the library that made the communicator.
struct LoadedNccl {
  NcclFunctions functions{};
  decltype(&ncclCommUserRank) user_rank = nullptr;
  decltype(&ncclCommCount) count = nullptr;
  decltype(&ncclCommCuDevice) device = nullptr;
};

/// Finds NCCL's functions. Searches first among the symbols that all libraries of the process see, then in a
/// libnccl.so.2 that one library has loaded privately, as in Python. Throws UnsupportedError if a function is missing.
LoadedNccl loaded_nccl() {
  constexpr const char* kLibrary = "libnccl.so.2";
  void* where = RTLD_DEFAULT;
  const auto close = [](void* library) { ::dlclose(library); };
  std::unique_ptr<void, decltype(close)> library(nullptr, close);
  if (::dlsym(RTLD_DEFAULT, "ncclAllReduce") == nullptr) {
    library.reset(::dlopen(kLibrary, RTLD_NOW | RTLD_NOLOAD));
    require<UnsupportedError>(library != nullptr, "this process has loaded no NCCL (", kLibrary,
                              "), expected the one that made the communicator");
    where = library.get();  // stays valid: the host program keeps NCCL loaded while it has a communicator
  }
  const auto get = [where](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(where, name));
    require<UnsupportedError>(function != nullptr, "the NCCL of this process has no function ", name,
                              ", expected a newer NCCL");
  };
  LoadedNccl nccl;
  get(nccl.functions.all_reduce, "ncclAllReduce");
  get(nccl.functions.reduce_scatter, "ncclReduceScatter");
  get(nccl.functions.all_gather, "ncclAllGather");
  get(nccl.functions.broadcast, "ncclBroadcast");
  get(nccl.functions.send, "ncclSend");
  get(nccl.functions.recv, "ncclRecv");
  get(nccl.functions.group_start, "ncclGroupStart");
  get(nccl.functions.group_end, "ncclGroupEnd");
  get(nccl.functions.async_error, "ncclCommGetAsyncError");
  get(nccl.functions.error_string, "ncclGetErrorString");
  get(nccl.functions.last_error, "ncclGetLastError");
  get(nccl.user_rank, "ncclCommUserRank");
  get(nccl.count, "ncclCommCount");
  get(nccl.device, "ncclCommCuDevice");
  return nccl;
}

/// A communicator that a host program has made. Only the host program ends the communicator, even after an error.
class AdoptedNccl final : public NcclExchange {
 public:
  AdoptedNccl(const NcclFunctions& functions, ncclComm_t comm, int rank, int size, Device device, double timeout_s)
      : NcclExchange(functions, comm, rank, size, device, timeout_s) {}

  [[nodiscard]] std::unique_ptr<Communicator> split(int /*color*/, int /*key*/) override {
    throw UnsupportedError("split: the communicator is the host program's, expected one of lockstep's own");
  }

 private:
  void give_up(ncclComm_t /*comm*/) noexcept override {}
};

std::unique_ptr<AdoptedNccl> adopt(ncclComm_t comm, Communicator& control, Device device, double timeout_s) {
  require<UsageError>(comm != nullptr, "the communicator is NULL, expected one of NCCL");
  require<UsageError>(timeout_s > 0, "timeout is ", timeout_s, " s, expected more than 0");
  require<DeviceError>(device.kind == DeviceKind::cuda, "the device is ", device, ", expected a GPU");
  const LoadedNccl nccl = loaded_nccl();
  int rank = -1;
  int size = -1;
  int gpu = -1;
  const auto ask = [&](const char* name, ncclResult_t result) {
    require<NcclError>(result == ncclSuccess, "the communicator cannot be used, expected a live one of NCCL: ", name,
                       ": ", nccl.functions.words(result));
  };
  ask("ncclCommUserRank", nccl.user_rank(comm, &rank));
  ask("ncclCommCount", nccl.count(comm, &size));
  ask("ncclCommCuDevice", nccl.device(comm, &gpu));
  require<UsageError>(rank == control.rank() && size == control.size(), "the communicator is of rank ", rank, " of ",
                      size, ", expected rank ", control.rank(), " of ", control.size(),
                      " as the communicator for host memory");
  require<DeviceError>(gpu == device.index, "the communicator is on cuda:", gpu, ", the context on ", device,
                       ", expected both on one GPU");
  return std::make_unique<AdoptedNccl>(nccl.functions, comm, rank, size, device, timeout_s);
}

}  // namespace

std::unique_ptr<Communicator> adopt_nccl_communicator(void* comm, Communicator& control, Device device,
                                                      double timeout_s) {
  std::unique_ptr<AdoptedNccl> adopted;
  const auto together = [&](const std::string& step, auto&& f) {
    std::string failure;
    char kind = ' ';  // letter for the class of this rank's exception; ' ': none
    try {
      f();
    } catch (const UsageError& error) {
      kind = 'u', failure = error.what();
    } catch (const DeviceError& error) {
      kind = 'd', failure = error.what();
    } catch (const UnsupportedError& error) {
      kind = 's', failure = error.what();
    } catch (const std::exception& error) {
      kind = 'n', failure = error.what();
    }
    const std::vector<std::string> failures = all_gather_text(control, kind + failure);
    for (std::size_t r = 0; r < failures.size(); ++r) {
      const std::string text = concat("nccl: ", step, ": rank ", r, ": ", failures[r].substr(1));
      require<CollectiveError<UsageError>>(failures[r][0] != 'u', text);
      require<CollectiveError<DeviceError>>(failures[r][0] != 'd', text);
      require<CollectiveError<UnsupportedError>>(failures[r][0] != 's', text);
      require<CollectiveError<NcclError>>(failures[r][0] == ' ', text);
    }
  };
  together("adopting", [&] { adopted = adopt(static_cast<ncclComm_t>(comm), control, device, timeout_s); });
  together("the first operation", [&] { adopted->first_operation(); });
  return adopted;
}

}  // namespace lockstep::comm
