#pragma once

#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include <lockstep/runtime/machine/processors.hpp>

/// Binds a program's threads to the processors next to its GPU (docs/launch.md). The library never binds on its own: a
/// program calls this for the thread that starts its other threads, which inherit the mask.
namespace lockstep {

/// Processors on which a rank's threads should run, with the reason.
struct CpuBinding {
  ProcessorSet processors{};  ///< processors to run on; empty: do not bind
  std::string reason{};       ///< "next to the GPU", "bound by the launcher", ..
};

/// Plans a binding. allowed: the processors that the thread may use now; online: all of the machine; near: the
/// processors next to the GPU. The thread keeps its processors in three cases: they are fewer than the machine's (a
/// launcher, a batch system or a container chose them); nothing is known of the GPU; all or none of `allowed` are near.
/// Otherwise it gets the near ones of `allowed`: a mask is never widened.
[[nodiscard]] CpuBinding plan_binding(const ProcessorSet& allowed, const ProcessorSet& online,
                                      const ProcessorSet& near);

/// Returns the processors next to a PCI device ("0000:3b:00.0", GpuInfo::pci), as the kernel lists them below `root`;
/// empty when the kernel lists none.
[[nodiscard]] ProcessorSet processors_near(std::string_view pci, const std::string& root = "/sys");

/// Restricts the calling thread, and the threads that it starts later, to these processors. UsageError for an empty
/// set; StateError when the system refuses.
void bind_this_thread(const ProcessorSet& processors);

/// Returns the processors for a thread that must not stay in the calling thread's OpenMP place: all processors of the
/// process (ProcessorSet::of_process()). OpenMP binds the main thread to one place, and threads that it starts inherit
/// the place. Empty when OpenMP has bound no thread in this way.
[[nodiscard]] ProcessorSet outside_of_place();
/// Binds the calling thread to `processors`, unless the system refuses; an empty set changes nothing.
void leave_place(const ProcessorSet& processors = outside_of_place()) noexcept;

/// Starts a std::thread that leaves the OpenMP place of its starter, then calls f. std::system_error when none can
/// start.
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

/// Calls plan_binding() for this machine and thread and applies the result.
CpuBinding bind_this_thread_near(std::string_view pci);

}  // namespace lockstep
