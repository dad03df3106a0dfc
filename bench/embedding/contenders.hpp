#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

// The contenders that bench_embedding times, as functions without arguments. All compute the network of
// bench/embedding/network.hpp with the same parameters. Making a contender compares its result with that of plain
// loops.

namespace lockstep::bench {

/// One way to compute the network.
struct Contender {
  std::function<void()> call{};  ///< owns everything that it uses; empty: this contender cannot run here
  std::string missing{};         ///< reason why `call` is empty
  double samples = 0;            ///< samples per call
};

/// Returns the names of the contenders: "c", "cpp", "outputs", "samples", "exact", "fortran", "torch".
[[nodiscard]] const std::vector<std::string>& ways();
/// Makes the contender `way` for n samples on one thread. If `wide` is true, the contender computes the
/// wide network, which the contenders in Fortran and libtorch do not offer. Throws UsageError for an unknown way, and
/// Error when a result differs from the result of plain loops.
template <class T>
[[nodiscard]] Contender make_contender(const std::string& way, std::int64_t n, bool wide = false);

/// Makes a contender that calls lockstep_infer for n samples with an f32 model. The views of inputs and outputs have
/// type f64 and the shapes (inputs, n) and (1, n).
[[nodiscard]] Contender make_strided(std::int64_t n);
/// Makes a contender of one training step in C, in f32.
[[nodiscard]] Contender make_training(std::int64_t n);
/// Makes a contender that calls lockstep_infer for n samples. The model has three convolutions 3 x 3, of 8, 8 and 2
/// channels, over 16 x 16 cells, in f32.
[[nodiscard]] Contender make_convolution(std::int64_t n);

/// Makes a contender for 64 boxes of 8 x 8 x 8 cells. If `many` is true, the contender calls lockstep_infer_many with a
/// view of each box, otherwise lockstep_infer with one view of all cells.
template <class T>
[[nodiscard]] Contender make_boxes(bool many);

/// Makes a contender of several threads, each with its own context; all threads share one model. In a call every thread
/// computes 20 times 1024 samples, at the same time as the other threads.
template <class T>
[[nodiscard]] Contender make_threads(int threads);

/// Returns a function that calls lockstep_infer for n samples, with a model that was prepared once for 1024 samples.
template <class T>
[[nodiscard]] std::function<void(std::int64_t n)> make_any();

/// Returns libtorch's version, such as "2.6.0", or the reason why there is no libtorch.
[[nodiscard]] std::string torch_version();

}  // namespace lockstep::bench
