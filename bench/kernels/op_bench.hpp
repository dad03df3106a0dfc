#pragma once

#include <vector>

#include "tests/support/op_case.hpp"

namespace lockstep::bench {

/// The main() of bench_kernels: a benchmark for each op case, with bytes a second, the share of the copy bandwidth
/// measured on the same device with the same threads, and flops a second where the case says flops. `--help` lists the
/// options. Returns the exit code.
int op_bench_main(int argc, char** argv, const std::vector<testing::OpCase>& cases);

}  // namespace lockstep::bench
