#include <lockstep/comm/launch/rank_context.hpp>

#include <lockstep/comm/local/local_communicator.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/base/openmp.hpp>
#include <lockstep/runtime/machine/cpu_binding.hpp>

namespace lockstep::comm {

RankContext::RankContext(Session& session, const DeviceRequest& devices, const RankContextOptions& options)
    : session_(session), device_(place_rank(session, devices)) {
  session.agree([&] {
    if (device_.device.kind == DeviceKind::cuda) {
      gpu_ = list_gpus().at(static_cast<std::size_t>(device_.device.index));
      binding_ = options.bind_near_gpu ? bind_this_thread_near(gpu_->pci).reason : "not bound, as asked";
    }
  });
  share_ = cpu_share(session);
  // OpenMP binds the threads of all ranks with the same mask to the same OpenMP places, so the ranks would compete for
  // the same processors. leave_place() ends this binding.
  if (share_.sharers > 1 && !on_gpu()) {
    lockstep::detail::run_parallel(
        compute_threads(share_, options.threads).count, [](void*, int, int) { leave_place(); }, nullptr);
  }
  session.agree([&] {
    threads_ = compute_threads(share_, options.threads);
    resolve_overlap(options.overlap);
    if (on_gpu()) {
      context_ = std::make_unique<CudaContext>(device_.device,
                                               CudaContextOptions{.dependent_launches = options.dependent_launches});
      alone_ = LocalGroup(1).communicator(0);
    } else {
      require<UsageError>(!options.dependent_launches,
                          "rank_context: dependent launches are on, expected off: this rank computes on the host");
      context_ = std::make_unique<CpuContext>(CpuContextOptions{.threads = threads()});
    }
  });
  if (on_gpu() && session.size() > 1) {
    gpu_ranks_.emplace(session, device_);
  }
}

void RankContext::resolve_overlap(RankContextOptions::Overlap wanted) {
  using Overlap = RankContextOptions::Overlap;
  if (session_.size() > 1 && on_gpu()) {  // overlap needs no free host thread, because NCCL runs on the GPU
    overlaps_ = wanted != Overlap::off;
    overlap_reason_ = overlaps_ ? "on: a stream of the GPU" : "off";
  } else if (session_.size() == 1) {
    overlap_reason_ = "off: one rank";
  } else if (wanted == Overlap::automatic) {
    overlaps_ = session_.grad().can_overlap() && share_.spare(threads());
    overlap_reason_ = overlaps_                       ? "on"
                      : session_.grad().can_overlap() ? "off: no processor beyond the compute threads"
                                                      : "off: MPI gives this program one thread";
  } else {
    overlaps_ = wanted == Overlap::on;
    require<UsageError>(!overlaps_ || session_.grad().can_overlap(),
                        "overlap is on, but MPI was started without thread support; expected MPI_THREAD_SERIALIZED or "
                        "more, or overlap off");
    overlap_reason_ = overlaps_ ? "on" : "off";
  }
}

Communicator& RankContext::grad() {
  return gpu_ranks_ ? gpu_ranks_->grad() : on_gpu() ? *alone_ : session_.grad();
}

Stream& RankContext::communication_stream() {
  return !overlaps_   ? context_->stream()
         : gpu_ranks_ ? gpu_ranks_->communication_stream()
                      : session_.communication_stream();
}

}  // namespace lockstep::comm
