#include <lockstep/comm/launch/gpu_ranks.hpp>

#include <exception>

#include <lockstep/comm/wait.hpp>

namespace lockstep::comm {
namespace {

constexpr int kHighPriority = -1;

NcclOptions with_sharing(NcclOptions options, const RankDevice& placed) {
  options.allow_shared_gpu = options.allow_shared_gpu || placed.shared;
  return options;
}

}  // namespace

GpuRanks::GpuRanks(Communicator& control, const RankDevice& placed, const NcclOptions& options)
    : stream_(Stream::cuda(placed.device, kHighPriority)),
      drained_(placed.device),
      grad_(make_nccl_communicator(control, placed.device, with_sharing(options, placed))),
      uncaught_(std::uncaught_exceptions()) {}

GpuRanks::~GpuRanks() {
  if (std::uncaught_exceptions() == uncaught_) {
    try {
      wait(stream_, drained_, *grad_);
    } catch (...) {  // wait() has then aborted the communicator, so no work on the stream waits for another rank
    }
  }
  grad_.reset();  // ends NCCL before the destructor of stream_, which waits for queued work
}

}  // namespace lockstep::comm
