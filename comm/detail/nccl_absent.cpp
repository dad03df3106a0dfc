#include <lockstep/comm/error.hpp>
#include <lockstep/comm/gpu_communicator.hpp>
#include <lockstep/runtime/base/error.hpp>

// Definitions for a build without NCCL. In a build with NCCL, the files in comm/nccl/ define these functions.

namespace lockstep::comm {

std::unique_ptr<Communicator> make_nccl_communicator(Communicator& control, Device device,
                                                     const NcclOptions& /*options*/) {
  throw CollectiveError<UsageError>(concat("nccl: this build has no NCCL, expected one that has it for ",
                                           control.size(), control.size() == 1 ? " rank on " : " ranks on ", device,
                                           " (CMake option LOCKSTEP_NCCL)"));
}

std::unique_ptr<Communicator> adopt_nccl_communicator(void* /*comm*/, Communicator& control, Device device,
                                                      double /*timeout_s*/) {
  throw CollectiveError<UnsupportedError>(concat("nccl: this build has no NCCL, expected one that has it for ",
                                                 control.size(), control.size() == 1 ? " rank on " : " ranks on ",
                                                 device, " (CMake option LOCKSTEP_NCCL)"));
}

std::unique_ptr<NcclEstimator> make_nccl_estimator(Communicator& /*communicator*/) {
  return nullptr;
}

bool has_nccl() {
  return false;
}

}  // namespace lockstep::comm
