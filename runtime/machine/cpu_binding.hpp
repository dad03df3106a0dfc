#pragma once

#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include <lockstep/runtime/machine/processors.hpp>

/// Binds a program's threads to the processors next to its GPU (docs/launch.md). The library itself never binds
/// threads. A program calls bind_this_thread_near() in the thread that starts its other threads, because those threads
/// inherit the CPU mask.
namespace lockstep {

/// Processors on which a rank's threads should run, with the reason for this choice.
struct CpuBinding {
  ProcessorSet processors{};  ///< processors to bind to; empty: do not bind
  std::string reason{};       ///< "next to the GPU", "bound by the launcher", ..
};

/// Plans a binding. `allowed` are the processors that the thread may use now, `online` all processors of the machine,
/// `near` the processors next to the GPU. The result is the intersection of `near` and `allowed`, so the thread gets no
/// new processors. The result is empty, and the thread keeps its processors, in three cases. First, `allowed` has fewer
/// processors than `online`, because a launcher, a batch system or a container chose them. Second, `near` is empty,
/// because the processors next to the GPU are unknown. Third, all or none of `allowed` are near.
[[nodiscard]] CpuBinding plan_binding(const ProcessorSet& allowed, const ProcessorSet& online,
                                      const ProcessorSet& near);

/// Returns the processors next to a PCI device ("0000:3b:00.0", GpuInfo::pci), as the kernel lists them below `root`.
/// Returns an empty set if the kernel lists none.
[[nodiscard]] ProcessorSet processors_near(std::string_view pci, const std::string& root = "/sys");

/// Restricts the calling thread, and the threads that it starts later, to these processors. Throws UsageError for an
/// empty set, StateError if the system refuses.
void bind_this_thread(const ProcessorSet& processors);

/// Returns the processors for a thread that must leave the calling thread's OpenMP place: all processors of the process
/// (ProcessorSet::of_process()). OpenMP binds the main thread to one place, and the threads that the main thread starts
/// inherit this place. Returns an empty set if OpenMP has not bound the calling thread to a place.
[[nodiscard]] ProcessorSet outside_of_place();
/// Binds the calling thread to `processors`. Does nothing for an empty set, or if the system refuses.
void leave_place(const ProcessorSet& processors = outside_of_place()) noexcept;

/// Starts a std::thread that leaves its starter's OpenMP place and then calls `f`. Throws std::system_error if the
/// system cannot start a thread.
template <class F>
[[nodiscard]] std::thread helper_thread(F f) {
  try {
    return std::thread([f = std::move(f), processors = outside_of_place()]() mutable {
      leave_place(processors);
      f();
    });
  } catch (const std::system_error& error) {
    throw std::system_error(error.code(),
                            "a thread cannot be started, expected room for one more (ulimit -u and -v, or pids.max)");
  }
}

/// Plans a binding for this machine and thread with plan_binding(), and applies it.
CpuBinding bind_this_thread_near(std::string_view pci);

}  // namespace lockstep
