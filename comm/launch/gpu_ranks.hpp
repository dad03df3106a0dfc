#pragma once

#include <memory>
#include <utility>

#include <lockstep/comm/gpu_communicator.hpp>
#include <lockstep/comm/launch/rank_device.hpp>
#include <lockstep/comm/launch/session.hpp>
#include <lockstep/runtime/stream/stream.hpp>

namespace lockstep::comm {

/// The NCCL communicator of all ranks of the session, through which ranks on GPUs exchange gradients, and the stream of
/// its operations. The stream has high priority, so that operations start while backward still fills the GPU. A program
/// makes this object once, after place_rank(). Collective, with the errors of make_nccl_communicator().
class GpuRanks {
 public:
  /// placed.device must be a GPU (DeviceError). With placed.shared, place_rank() has set the environment variables.
  GpuRanks(Session& session, const RankDevice& placed, const NcclOptions& options = {})
      : GpuRanks(session.control(), placed, options) {
    grad_ = session.noted(std::move(grad_));
  }
  /// Makes the object for the ranks of `control`, a communicator for host tensors.
  GpuRanks(Communicator& control, const RankDevice& placed, const NcclOptions& options = {});
  /// Waits for the stream, then ends NCCL together with the other ranks. If an exception unwinds the stack, aborts NCCL
  /// first. Destroy graphs that captured operations before this object.
  ~GpuRanks();
  GpuRanks(const GpuRanks&) = delete;
  GpuRanks& operator=(const GpuRanks&) = delete;

  [[nodiscard]] Communicator& grad() { return *grad_; }
  [[nodiscard]] Stream& communication_stream() { return stream_; }

 private:
  Stream stream_;
  Event drained_;
  std::unique_ptr<Communicator> grad_;
  int uncaught_;
};

}  // namespace lockstep::comm
