#pragma once

#include <memory>
#include <optional>
#include <string>

#include <lockstep/comm/launch/cpu_share.hpp>
#include <lockstep/comm/launch/gpu_ranks.hpp>
#include <lockstep/comm/launch/rank_device.hpp>
#include <lockstep/comm/launch/session.hpp>
#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/machine/device_selection.hpp>

namespace lockstep::comm {

struct RankContextOptions {
  enum class Overlap : unsigned char { off, on, automatic };
  /// Threads of a rank on the host. 0: OMP_NUM_THREADS if it is set, otherwise the rank's share of the processors.
  int threads = 0;
  /// Says whether to reduce gradients while backward computes. automatic: on GPUs, and on a host with a free processor.
  Overlap overlap = Overlap::automatic;
  bool dependent_launches = false;  ///< CudaContextOptions::dependent_launches, with its errors; UsageError on a host
  bool bind_near_gpu = true;        ///< true: binds the calling thread, and threads that it starts later, near the GPU
};

/// Makes the objects of a program of several ranks in one call: the device of this rank, a context on it, and a
/// communicator for gradients. The default is one rank for each GPU on all GPUs, or the CPU if there is no GPU. Owns
/// all of these objects; the session must live longer. First destroy graphs that hold operations of grad().
class RankContext {
 public:
  /// Makes the objects. Collective. Throws the errors of place_rank() and make_nccl_communicator() on all ranks,
  /// printed once. Throws UsageError for Overlap::on if MPI gives this program only one thread.
  explicit RankContext(Session& session, const DeviceRequest& devices = {}, const RankContextOptions& options = {});
  RankContext(const RankContext&) = delete;
  RankContext& operator=(const RankContext&) = delete;

  [[nodiscard]] Context& context() { return *context_; }
  /// Returns the communicator for gradients: NCCL between GPUs, MPI between hosts. If a single rank has a GPU, returns
  /// a communicator of one rank.
  [[nodiscard]] Communicator& grad();
  [[nodiscard]] Communicator& control() { return session_.control(); }  ///< communicator for small host values
  /// Returns the stream for operations of grad(). It is the context's own stream unless overlaps() is true.
  [[nodiscard]] Stream& communication_stream();

  [[nodiscard]] bool on_gpu() const { return gpu_.has_value(); }
  [[nodiscard]] const RankDevice& device() const { return device_; }
  [[nodiscard]] const std::optional<GpuInfo>& gpu() const { return gpu_; }
  [[nodiscard]] const CpuShare& share() const { return share_; }
  [[nodiscard]] int threads() const { return threads_.count; }  ///< number of compute threads of a rank on the host
  [[nodiscard]] const std::string& threads_from() const { return threads_.from; }  ///< e.g. "OMP_NUM_THREADS"
  /// Returns why the threads run on their processors; empty on the host.
  [[nodiscard]] const std::string& binding() const { return binding_; }
  [[nodiscard]] bool overlaps() const { return overlaps_; }
  [[nodiscard]] const std::string& overlap_reason() const { return overlap_reason_; }  ///< e.g. "off: one rank"

 private:
  void resolve_overlap(RankContextOptions::Overlap wanted);
  Session& session_;
  RankDevice device_;
  std::optional<GpuInfo> gpu_;
  std::string binding_;
  CpuShare share_;
  ComputeThreads threads_;
  bool overlaps_ = false;
  std::string overlap_reason_;
  std::unique_ptr<Context> context_;
  std::unique_ptr<Communicator> alone_;  ///< communicator of a single rank on a GPU
  std::optional<GpuRanks> gpu_ranks_;    ///< set if there are several ranks
};

}  // namespace lockstep::comm
