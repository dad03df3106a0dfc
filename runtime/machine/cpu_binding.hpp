#pragma once

#include <string>
#include <string_view>

#include <lockstep/runtime/machine/processors.hpp>

/// Binding a program's threads to the processors next to its GPU (docs/launch.md). The library never binds by itself: a
/// program calls this for the thread from which it starts its others, which inherit the mask.
namespace lockstep {

/// What to do about the processors of a rank, and why.
struct CpuBinding {
  ProcessorSet processors{};  ///< to run on; empty: leave them as they are
  std::string reason{};       ///< "next to the GPU", "bound by the launcher", ..
};

/// allowed: those that the thread may use now; online: all of the machine; near: those next to the GPU.
/// The thread keeps what it has when that is less than the machine (a launcher, a batch system or a container chose
/// it), when nothing is known of the GPU, and when all of `allowed` or none of it is near. Else the near ones of
/// `allowed`: a mask is never widened.
[[nodiscard]] CpuBinding plan_binding(const ProcessorSet& allowed, const ProcessorSet& online,
                                      const ProcessorSet& near);

/// The processors next to a PCI device ("0000:3b:00.0", GpuInfo::pci), as the kernel tells below `root`; empty when it
/// does not.
[[nodiscard]] ProcessorSet processors_near(std::string_view pci, const std::string& root = "/sys");

/// Makes the calling thread and those that it starts from now on run on these processors only. UsageError for none;
/// StateError when the system refuses.
void bind_this_thread(const ProcessorSet& processors);

/// plan_binding() of this machine and thread, done.
CpuBinding bind_this_thread_near(std::string_view pci);

}  // namespace lockstep
