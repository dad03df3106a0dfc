#pragma once

#include <vector>

#include "tests/support/op_case.hpp"

namespace lockstep::bench {

/// The main() of bench_kernels: runs a benchmark for each op case. Reports the bytes per second of the op, and their
/// ratio to the bytes per second of a copy on the same device with the same threads. Also reports the flops per second
/// if the case has flops. `--help` lists the options. Returns the exit code.
int op_bench_main(int argc, char** argv, const std::vector<testing::OpCase>& cases);

}  // namespace lockstep::bench
