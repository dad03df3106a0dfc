#pragma once

namespace lockstep::emulation {

/// The number of the fault that this run plants; 0: none. The build plants the faults of tests/kernels/OP_faults.json
/// into the emulated copies of kernels. Their numbers run from 1, through all ops.
inline int planted_fault = 0;

inline bool planted(int fault) {
  return fault == planted_fault;
}

}  // namespace lockstep::emulation
