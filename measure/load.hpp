#pragma once

#include <functional>
#include <memory>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/runtime/stream/context.hpp>

#include "measure/measure.hpp"

namespace lockstep::measure {

/// Work that a thread of its own does over and over while something else is timed: what a copy costs while a matrix
/// product runs, and the product while the copy does. One object, any number of rounds.
class Load {
 public:
  virtual ~Load();
  Load();
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;

  /// Returns when the first piece of work is done. All ranks together where the work is collective.
  void start();
  /// Ends it. Pieces of work a second since start(); rethrows what the work threw. Collective as start() is.
  double stop();

 protected:
  /// Does the work until stopped() says so; calls done() after each piece.
  virtual void run() = 0;
  [[nodiscard]] bool stopped() const;
  void done();
  /// For the destructor of a class that has run().
  void end() noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Products of two square matrices, f32, on the device of `context`, which only the load uses until it is gone: 512 x
/// 512 on the CPU, 2048 x 2048 on a GPU, where one is always enqueued behind the one that runs.
[[nodiscard]] std::unique_ptr<Load> matmul_load(Context& context);
/// False where this build has no product for that device.
[[nodiscard]] bool can_load_matmul(Context& context);
/// All-reduces of `bytes` over a communicator that only the load uses meanwhile, on the stream and in the memory of
/// `context`, as the communicator takes them (MPI: the host, an inline stream; NCCL: the rank's GPU). The ranks agree
/// inside the all-reduce on when to end, so the host waits for each. Beside it no other NCCL communicator of the
/// process is used. StateError on the host unless any_thread(), UsageError for one rank.
[[nodiscard]] std::unique_ptr<Load> all_reduce_load(comm::Communicator& communicator, Context& context,
                                                    std::int64_t bytes);

/// What two things do to each other.
struct Beside {
  Samples samples;           ///< of what was timed, with the load
  double alone_seconds = 0;  ///< median without the load
  double slowdown = 0;       ///< median with / without
  double load_slowdown = 0;  ///< rate without / with, of the rank where it is largest; NaN: no piece was finished
};

/// take() alone, the load alone for as long, then both. Collective over `ranks`.
[[nodiscard]] Beside measure_beside(comm::Communicator& ranks, Load& load, const std::function<Samples()>& take);

}  // namespace lockstep::measure
