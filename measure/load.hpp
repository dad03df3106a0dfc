#pragma once

#include <functional>
#include <memory>

#include <lockstep/comm/communicator.hpp>
#include <lockstep/runtime/context/context.hpp>

#include "measure/measure.hpp"

namespace lockstep::measure {

/// Work that a thread repeats while something else is timed, for example matrix products during a copy. The times of
/// the load and of the timed work show how much each slows down the other. A Load can be started and stopped any number
/// of times.
class Load {
 public:
  virtual ~Load();
  Load();
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;

  /// Starts the work. Returns when the first piece of work is done, or when the work has thrown an exception.
  /// Collective if the work is collective.
  void start();
  /// Stops the work. Returns the pieces of work per second since start(); rethrows an exception of the work. Collective
  /// if the work is collective.
  double stop();

 protected:
  /// Must repeat the work until stopped() returns true, and call done() after each piece of work.
  virtual void run() = 0;
  [[nodiscard]] bool stopped() const;
  void done();
  /// Stops the work and waits for its thread. The destructor of every derived class must call end().
  void end() noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Makes a load that repeats the product of two square f32 matrices on the device of `context`. The matrices are
/// 512 x 512 on the CPU and 2048 x 2048 on a GPU. The load enqueues each product before the previous product has
/// ended, so that a GPU always has work. The caller must not use `context` until the load is destroyed.
[[nodiscard]] std::unique_ptr<Load> matmul_load(Context& context);
/// Returns false if this build has no matrix product for the device of `context`.
[[nodiscard]] bool can_load_matmul(Context& context);
/// Makes a load that repeats an all-reduce of `bytes` bytes, on the stream and in the memory of `context`. With MPI,
/// `context` must be on the host and have an inline stream. With NCCL, `context` must be on the rank's GPU.
///
/// While the load runs, the caller may use neither `communicator` nor any other NCCL communicator of the process. The
/// first element of each all-reduce counts the ranks that want to stop, so the host waits for every all-reduce.
///
/// Throws UsageError for one rank. Throws StateError on the host unless communicator.any_thread().
[[nodiscard]] std::unique_ptr<Load> all_reduce_load(comm::Communicator& communicator, Context& context,
                                                    std::int64_t bytes);

/// The rates of timed work and of a load, alone and together. They show how much each slows down the other.
struct Beside {
  Samples samples;           ///< times of the timed work, with the load
  double alone_seconds = 0;  ///< median seconds of the timed work without the load
  double slowdown = 0;       ///< median with the load / median without the load
  /// Rate of the load alone / rate of the load with the work, on the rank with the largest ratio. NaN if the load
  /// finished no piece of work.
  double load_slowdown = 0;
};

/// Runs take() alone, then the load alone for the same time, then both together. Collective over `ranks`.
[[nodiscard]] Beside measure_beside(comm::Communicator& ranks, Load& load, const std::function<Samples()>& take);

}  // namespace lockstep::measure
