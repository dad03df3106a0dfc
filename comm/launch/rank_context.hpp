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
  /// Number of compute threads of a rank on the host; 0 means the number that comm::compute_threads() chooses.
  int threads = 0;
  /// Says whether gradients are reduced while backward computes. `automatic` means yes on GPUs; on hosts, yes if each
  /// rank has a free processor.
  Overlap overlap = Overlap::automatic;
  bool dependent_launches = false;  ///< CudaContextOptions::dependent_launches; on a host, true is a UsageError
  bool bind_near_gpu = true;        ///< true: the calling thread, and threads that it starts later, run near the GPU
};

/// Makes the objects that a program of several ranks needs: the device of this rank, a context on it, and a
/// communicator for gradients. By default, the job has one rank for each GPU, or computes on the CPU if there is no
/// GPU. Owns these objects. The session must outlive this object. Graphs with operations of grad() must be destroyed
/// before this object.
class RankContext {
 public:
  /// Makes the objects. Collective. An error of place_rank() or make_nccl_communicator() is thrown on all ranks, and
  /// printed once. Throws UsageError for Overlap::on if MPI allows this program only one thread.
  explicit RankContext(Session& session, const DeviceRequest& devices = {}, const RankContextOptions& options = {});
  RankContext(const RankContext&) = delete;
  RankContext& operator=(const RankContext&) = delete;

  [[nodiscard]] Context& context() { return *context_; }
  /// Returns the communicator for gradients: NCCL for several ranks on GPUs, a communicator of one rank for a single
  /// rank on a GPU, and Session::grad() for ranks on hosts.
  [[nodiscard]] Communicator& grad();
  [[nodiscard]] Communicator& control() { return session_.control(); }  ///< communicator for small tensors on the host
  /// Returns the stream on which operations of grad() run. If overlaps() is false, this is the context's own stream.
  [[nodiscard]] Stream& communication_stream();

  [[nodiscard]] bool on_gpu() const { return gpu_.has_value(); }
  [[nodiscard]] const RankDevice& device() const { return device_; }
  [[nodiscard]] const std::optional<GpuInfo>& gpu() const { return gpu_; }
  [[nodiscard]] const CpuShare& share() const { return share_; }
  [[nodiscard]] int threads() const { return threads_.count; }  ///< number of compute threads of a rank on the host
  [[nodiscard]] const std::string& threads_from() const { return threads_.from; }  ///< origin of the number threads()
  /// Returns why the calling thread is bound near the GPU, or why it is not; empty for a rank on the host.
  [[nodiscard]] const std::string& binding() const { return binding_; }
  [[nodiscard]] bool overlaps() const { return overlaps_; }
  [[nodiscard]] const std::string& overlap_reason() const { return overlap_reason_; }  ///< text such as "off: one rank"

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
  std::unique_ptr<Communicator> alone_;  ///< communicator of one rank; set only on a GPU
  std::optional<GpuRanks> gpu_ranks_;    ///< set only for several ranks on GPUs
};

}  // namespace lockstep::comm
