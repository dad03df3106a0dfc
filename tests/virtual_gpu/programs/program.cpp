// Adds a machine of the stand-in for CUDA to one of lockstep's programs, which links this file and keeps its own
// main(). The machine exists before main(). After main(), a line on standard error lists the machine's counts. The exit
// code is 99 if the program did something that CUDA forbids, or did not release everything. Environment variables set
// the machine's options (LOCKSTEP_VIRTUAL_GPUS, LOCKSTEP_VIRTUAL_SEED, LOCKSTEP_VIRTUAL_FOLDER; see README.md).
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>

#include <lockstep/emulation/launch.hpp>

#include "control.hpp"

#if LOCKSTEP_HAS_NCCL
#include "nccl_control.hpp"
#endif

namespace lockstep {
namespace {

constexpr int kForbidden = 99;

std::uint64_t number(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

class MachineOfProgram {
 public:
  MachineOfProgram() {
    const std::uint64_t seed = number("LOCKSTEP_VIRTUAL_SEED", 0);
    standin::reset({.devices = static_cast<int>(number("LOCKSTEP_VIRTUAL_GPUS", 1)), .seed = seed});
    emulation::set_schedule(seed == 0 ? emulation::Schedule::ascending() : emulation::Schedule::random(seed));
#if LOCKSTEP_HAS_NCCL
    const char* folder = std::getenv("LOCKSTEP_VIRTUAL_FOLDER");
    nccl_standin::reset({.folder = folder == nullptr ? "" : folder});
#endif
  }
  MachineOfProgram(const MachineOfProgram&) = delete;
  MachineOfProgram& operator=(const MachineOfProgram&) = delete;

  ~MachineOfProgram() {
    if (standin::devices_in_use().empty()) {  // no device was used: the program started ranks or printed its help
      return;
    }
    std::ostringstream line;
    line << "virtual GPU: " << standin::calls("cudaLaunchKernel") << " kernels launched, "
         << standin::calls("cudaGraphLaunch") << " graphs, " << standin::calls("ncclAllReduce") << " all-reduces\n";
    bool forbidden = false;
    const auto list = [&](const char* what, const std::vector<std::string>& found) {
      for (const std::string& one : found) {
        line << "virtual GPU: " << what << ": " << one << '\n';
        forbidden = true;
      }
    };
    list("forbidden", standin::violations());
    if (const std::size_t count = standin::devices_in_use().size(); count > 1) {
      list("forbidden", {"contexts on " + std::to_string(count) + " GPUs, expected one"});
    }
    list("not given back", standin::leaks());
#if LOCKSTEP_HAS_NCCL
    list("not given back", nccl_standin::leaks());
#endif
    std::fputs(line.str().c_str(), stderr);
    if (forbidden) {
      std::fflush(nullptr);
      _exit(kForbidden);
    }
  }
};

// The constructor creates the static objects that the destructor reads. So they are destroyed after this object.
const MachineOfProgram machine;

}  // namespace
}  // namespace lockstep
