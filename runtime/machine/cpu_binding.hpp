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

/// Where a rank's threads should run, and why.
struct CpuBinding {
  ProcessorSet processors{};  ///< to run on; empty: leave the threads as they are
  std::string reason{};       ///< "next to the GPU", "bound by the launcher", ..
};

/// allowed: the processors that the thread may use now; online: all of the machine; near: those next to the GPU. The
/// thread keeps its processors when they are fewer than the machine's (a launcher, a batch system or a container chose
/// them), when nothing is known of the GPU, and when all or none of `allowed` are near. Otherwise it gets the near ones
/// of `allowed`: a mask is never widened.
[[nodiscard]] CpuBinding plan_binding(const ProcessorSet& allowed, const ProcessorSet& online,
                                      const ProcessorSet& near);

/// The processors next to a PCI device ("0000:3b:00.0", GpuInfo::pci), as the kernel lists them below `root`; empty
/// when it lists none.
[[nodiscard]] ProcessorSet processors_near(std::string_view pci, const std::string& root = "/sys");

/// Restricts the calling thread, and the threads that it starts from now on, to these processors. UsageError for an
/// empty set; StateError when the system refuses.
void bind_this_thread(const ProcessorSet& processors);

/// Where a thread should run that is in a place of OpenMP's, as the calling one may be: wherever the process may
/// (ProcessorSet::of_process()). OpenMP binds the main thread to one place, which the threads that it starts inherit.
/// Empty where nobody was bound like that.
[[nodiscard]] ProcessorSet outside_of_place();
/// The calling thread runs there, unless the system refuses; an empty set changes nothing.
void leave_place(const ProcessorSet& processors = outside_of_place()) noexcept;

/// std::thread(f) that has left the place of the thread that starts it. std::system_error when the system gives none.
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
