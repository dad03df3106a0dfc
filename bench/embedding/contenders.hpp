#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

// What bench_embedding times, each as a function without arguments. All compute the network of
// bench/embedding/network.hpp with the same parameters; each result was compared with the plain loops' when it was
// made.

namespace lockstep::bench {

/// One way to compute something.
struct Contender {
  std::function<void()> call{};  ///< holds what it needs; empty: it cannot run here
  std::string missing{};         ///< why it cannot
  double samples = 0;            ///< of a call
};

/// "c", "cpp", "plain", "exact", "fortran", "torch".
[[nodiscard]] const std::vector<std::string>& ways();
/// n samples, one thread. UsageError for another way; Error when a result is not what plain loops give.
template <class T>
[[nodiscard]] Contender make_contender(const std::string& way, std::int64_t n);

/// 64 boxes of 8 x 8 x 8 cells: through lockstep_infer_many, or as one view of all cells.
template <class T>
[[nodiscard]] Contender make_boxes(bool many);

/// Threads with a context and a shared model each; every one computes 20 times 1024 samples, at once.
template <class T>
[[nodiscard]] Contender make_threads(int threads);

/// lockstep_infer of a model that was prepared for 1024 samples once, for any number of them.
template <class T>
[[nodiscard]] std::function<void(std::int64_t n)> make_any();

/// "2.6.0", or why there is none.
[[nodiscard]] std::string torch_version();

}  // namespace lockstep::bench
