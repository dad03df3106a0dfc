#include <lockstep/runtime/machine/cpu_binding.hpp>

#include <sched.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <fstream>

#include <lockstep/runtime/base/error.hpp>

namespace lockstep {

CpuBinding plan_binding(const ProcessorSet& allowed, const ProcessorSet& online, const ProcessorSet& near) {
  const ProcessorSet both = allowed.intersection(near);
  if (near.empty()) {
    return {.reason = "not bound: the system does not tell which are next to the GPU"};
  }
  if (allowed.intersection(online) != online) {
    return {.reason = "not all of the machine, and left so"};
  }
  if (both.empty()) {
    return {.reason = concat("not bound: next to the GPU are ", near.text(), ", which this rank may not use")};
  }
  if (both == allowed) {
    return {.reason = "all next to the GPU"};
  }
  return {.processors = both, .reason = "bound next to the GPU"};
}

ProcessorSet processors_near(std::string_view pci, const std::string& root) {
  std::ifstream file(concat(root, "/bus/pci/devices/", pci, "/local_cpulist"));
  std::string line;
  std::getline(file, line);
  return ProcessorSet::parse(line);
}

void bind_this_thread(const ProcessorSet& processors) {
  require<UsageError>(!processors.empty(), "binding: no processors, expected at least one");
  cpu_set_t mask;
  CPU_ZERO(&mask);
  for (const int processor : processors.numbers()) {
    if (processor < CPU_SETSIZE) {
      CPU_SET(static_cast<unsigned>(processor), &mask);
    }
  }
  require<StateError>(sched_setaffinity(0, sizeof mask, &mask) == 0, "binding: a thread cannot run on processors ",
                      processors.text(), ", expected processors that this process may use: ", std::strerror(errno));
}

ProcessorSet outside_of_place() {
  const ProcessorSet process = ProcessorSet::of_process();
  return process == ProcessorSet::of_this_thread() ? ProcessorSet() : process;
}

void leave_place(const ProcessorSet& processors) noexcept {
  try {
    if (!processors.empty()) {
      bind_this_thread(processors);
    }
  } catch (const std::exception&) {  // the system has refused, and the thread keeps its processors
  }
}

CpuBinding bind_this_thread_near(std::string_view pci) {
  leave_place();
  CpuBinding binding = plan_binding(ProcessorSet::of_this_thread(), online_processors(), processors_near(pci));
  if (!binding.processors.empty()) {
    bind_this_thread(binding.processors);
  }
  return binding;
}

}  // namespace lockstep
