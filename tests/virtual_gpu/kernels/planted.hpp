#pragma once

namespace lockstep::emulation {

/// Number of the fault that is active in this run; 0: none. The build inserts the faults of
/// tests/kernels/OP_faults.json into copies of the kernels. The faults of all ops are numbered from 1.
inline int planted_fault = 0;

inline bool planted(int fault) {
  return fault == planted_fault;
}

}  // namespace lockstep::emulation
