#pragma once

#include <memory>
#include <utility>

#include <lockstep/comm/gpu_communicator.hpp>
#include <lockstep/comm/launch/rank_device.hpp>
#include <lockstep/comm/launch/session.hpp>
#include <lockstep/runtime/stream/stream.hpp>

namespace lockstep::comm {

/// Holds the NCCL communicator of all ranks of a session, for gradients on GPUs, and the stream of its operations. The
/// stream has high priority, so that operations start while backward still fills the GPU. A program makes this object
/// once, after place_rank(). Collective. Throws the errors of make_nccl_communicator().
class GpuRanks {
 public:
  /// Takes the result of place_rank(), which prepares a shared GPU. Throws DeviceError unless placed.device is a GPU.
  GpuRanks(Session& session, const RankDevice& placed, const NcclOptions& options = {})
      : GpuRanks(session.control(), placed, options) {
    grad_ = session.noted(std::move(grad_));
  }
  /// Makes the object for the ranks of `control`, a communicator of host tensors, instead of a session's ranks.
  GpuRanks(Communicator& control, const RankDevice& placed, const NcclOptions& options = {});
  /// Waits for the stream, then ends NCCL together with the other ranks. If an exception unwinds the stack, aborts NCCL
  /// instead of waiting. Graphs that captured operations must be destroyed before this object.
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
