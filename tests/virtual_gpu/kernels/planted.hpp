#pragma once

namespace lockstep::emulation {

/// The number of the fault that this run plants; 0: none. The build rewrites the emulated copies of kernels after
/// tests/kernels/OP_faults.json; numbers are given there, from 1, through all ops.
inline int planted_fault = 0;

inline bool planted(int fault) {
  return fault == planted_fault;
}

}  // namespace lockstep::emulation
