#include <lockstep/runtime/machine/usable_gpus.hpp>

#include <thread>
#include <utility>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep {
namespace {

/// Takes the claim that a process holds while it searches for GPUs. Polls for the claim, because flock() has no time
/// limit and a library must not install a signal handler to interrupt it.
GpuClaim begin_search(const GpuSearch& search) {
  constexpr std::chrono::milliseconds kPause(5);
  const auto end = std::chrono::steady_clock::now() + search.patience;
  for (;;) {
    GpuClaim::Attempt attempt = GpuClaim::attempt(search.claim_folder, "search");
    if (attempt.claim) {
      return std::move(*attempt.claim);
    }
    require<DeviceError>(std::chrono::steady_clock::now() < end, "usable GPUs: the search of ", attempt.holder,
                         " has not ended for ", search.patience.count(), " ms, in ", search.claim_folder,
                         ", expected its end: wait for it, or end it");
    std::this_thread::sleep_for(kPause);
  }
}

/// Returns why the GPU is not usable; an empty text if it is usable. A GPU that returns an error is not usable.
std::string reason_against(const GpuSearch& search, const GpuInfo& gpu, std::optional<std::size_t> min_free_bytes) {
  try {
    return search.probe(gpu, min_free_bytes.value_or(not_occupied_bytes(gpu)));
  } catch (const CudaError& e) {
    return e.what();
  }
}

}  // namespace

std::size_t not_occupied_bytes(const GpuInfo& gpu) {
  return gpu.memory_bytes / 10 * 9;
}

UsableGpus find_usable_gpus(int count, std::optional<std::size_t> min_free_bytes, const GpuSearch& search) {
  require<UsageError>(count == -1 || count > 0, "find_usable_gpus: count is ", count,
                      ", expected a number of GPUs, or -1 for all that are usable");
  require<DeviceError>(!search.gpus.empty(), "usable GPUs: this process can use no GPU at all, expected at least one");
  const std::size_t wanted = count == -1 ? search.gpus.size() : static_cast<std::size_t>(count);
  require<DeviceError>(wanted <= search.gpus.size(), "usable GPUs: ", wanted, " wanted, expected at most the ",
                       search.gpus.size(), " that this process sees: ", to_string(search.gpus));
  UsableGpus found;
  std::string busy;
  {
    const GpuClaim alone = begin_search(search);
    for (const GpuInfo& gpu : search.gpus) {
      if (found.gpus.size() == wanted) {
        break;
      }
      GpuClaim::Attempt attempt = GpuClaim::attempt(search.claim_folder, gpu.uuid);
      const std::string why =
          attempt.claim ? reason_against(search, gpu, min_free_bytes) : "claimed by " + attempt.holder;
      if (why.empty()) {
        found.gpus.push_back(gpu);
        found.claims.push_back(std::move(*attempt.claim));
      } else {
        busy += concat("; GPU ", gpu.index, " (", gpu.name, ", ", gpu.uuid, ", ", gpu.pci, "): ", why);
      }
    }
  }
  require<DeviceError>(found.gpus.size() >= (count == -1 ? 1 : wanted), "usable GPUs: ", found.gpus.size(),
                       " found, expected ", count == -1 ? 1 : wanted, busy);
  return found;
}

UsableGpus find_usable_gpus(int count, std::optional<std::size_t> min_free_bytes) {
  return find_usable_gpus(count, min_free_bytes, {.gpus = list_gpus()});
}

}  // namespace lockstep
