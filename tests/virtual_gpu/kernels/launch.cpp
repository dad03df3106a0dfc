#include "launch.hpp"

#include <atomic>
#include <cstdint>
#include <string>

#include "control.hpp"

namespace lockstep::emulation {
namespace {

/// The schedule that the test program has set. A single variable is enough, because kernels run one at a time.
Schedule& current_schedule() {
  static Schedule schedule;
  return schedule;
}

std::atomic<std::int64_t>& launch_count() {
  static std::atomic<std::int64_t> count{0};
  return count;
}

std::atomic<std::int64_t>& dependent_count() {
  static std::atomic<std::int64_t> count{0};
  return count;
}

}  // namespace

std::int64_t dependent_launches() {
  return dependent_count();
}

void note_dependent(bool dependent) {
  dependent_count() += dependent ? 1 : 0;
}

std::int64_t launches() {
  return launch_count();
}

void set_schedule(const Schedule& schedule) {
  current_schedule() = schedule;
}

cudaError_t queue_kernel(const Launch& launch, cudaStream_t stream, std::span<const void* const> pointers,
                         std::function<void()> thread) {
  ++launch_count();
  for (const void* pointer : pointers) {
    if (pointer != nullptr && !standin::is_device_memory(pointer)) {
      standin::violate("a kernel's argument is a pointer to something else than device memory");
      return cudaErrorInvalidValue;
    }
  }
  return standin::launch(stream, [=](std::span<const standin::DeviceMemory> memory) {
    // The registration for each launch removes the checker's earlier records of this memory. Launches are ordered, so
    // an access of one launch does not race with the next launch.
    for (const auto& block : memory) {
      register_memory(block.data, block.bytes);
    }
    struct Forget {
      std::span<const standin::DeviceMemory> memory;
      ~Forget() {
        for (const auto& block : memory) {
          unregister_memory(block.data, block.bytes);
        }
      }
    } const forget{memory};
    run(launch, current_schedule(), thread);
  });
}

}  // namespace lockstep::emulation
