#include <lockstep/comm/nccl/nccl_exchange.hpp>

#include <chrono>
#include <thread>

#include <lockstep/comm/detail/checks.hpp>
#include <lockstep/comm/wait.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/cuda/device_guard.hpp>

namespace lockstep::comm {
namespace {

using Clock = std::chrono::steady_clock;
using cuda::DeviceGuard;

ncclDataType_t type_of(DType dtype) {
  static constexpr ncclDataType_t kTypes[] = {ncclFloat32, ncclFloat64, ncclBfloat16, ncclFloat16,
                                              ncclUint8,   ncclInt32,   ncclInt64,    ncclUint64};
  return kTypes[static_cast<std::size_t>(dtype)];
}

std::size_t count_of(const TensorView& view) {
  return static_cast<std::size_t>(view.numel());
}

/// Returns the address of part r of the elements of `view`, which are cut into `size` equal parts.
void* part_of(const TensorView& view, int r, int size) {
  return static_cast<std::byte*>(view.data) +
         static_cast<std::size_t>(r) * (view.bytes() / static_cast<std::size_t>(size));
}

}  // namespace

std::string NcclFunctions::words(ncclResult_t result) const {
  const char* last = last_error(nullptr);
  const std::string_view detail = last == nullptr ? "" : last;
  return concat(error_string(result), detail.empty() ? "" : "; NCCL's last message: ", detail);
}

ncclResult_t NcclFunctions::poll(ncclComm_t comm, double seconds) const {
  constexpr std::chrono::microseconds kPatience(100);
  constexpr std::chrono::microseconds kPause(20);
  const Clock::time_point start = Clock::now();
  while (true) {
    ncclResult_t state = ncclInProgress;
    const ncclResult_t asked = async_error(comm, &state);
    if (asked != ncclSuccess) {
      return asked;
    }
    const Clock::duration waited = Clock::now() - start;
    if (state != ncclInProgress || std::chrono::duration<double>(waited).count() > seconds) {
      return state;
    }
    if (waited < kPatience) {  // yields first, because enqueueing an operation takes less time than a sleep
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kPause);
    }
  }
}

NcclExchange::NcclExchange(const NcclFunctions& functions, ncclComm_t comm, int rank, int size, Device device,
                           double timeout_s)
    : Communicator(rank, size),
      nccl_(functions),
      comm_(comm),
      device_(device),
      timeout_s_(timeout_s),
      own_(device),
      scratch_(Tensor::zeros(own_, Shape{1}, DType::i32)) {
  own_.synchronize();  // waits until scratch_ is zero, because other streams may use it
}

void NcclExchange::require_alive(std::string_view op) const {
  require<NcclError>(comm_ != nullptr, op, ": the communicator was given up, expected no further call: ", failure_);
}

void NcclExchange::fail(const std::string& what, ncclResult_t result) {
  failure_ = concat("nccl: rank ", rank(), " of ", size(), " on ", device_, ": ", what, ": ",
                    nccl_.state_text(result, timeout_s_));
  give_up(release());
  throw NcclError(failure_);
}

template <class Call>
void NcclExchange::run(std::string_view op, const TensorView& data, Call&& call) {
  require_alive(op);
  const DeviceGuard guard(device_);
  // Does not call NCCL for an empty tensor, because no rank then has anything to exchange.
  const ncclResult_t result = data.numel() > 0 ? settled(call()) : ncclSuccess;
  if (result != ncclSuccess) {
    fail(concat(op, " of ", data.numel(), " x ", data.dtype), result);
  }
  ++counts_.calls;
  counts_.bytes += static_cast<std::int64_t>(data.bytes());
}

void NcclExchange::all_reduce(Stream& stream, const TensorView& data) {
  detail::check_on(device_, "all_reduce", stream, data);
  detail::check_summable("all_reduce", data.dtype);
  run("all_reduce", data, [&] {
    return nccl_.all_reduce(data.data, data.data, count_of(data), type_of(data.dtype), ncclSum, comm_,
                            stream.cuda_handle());
  });
}

void NcclExchange::reduce_scatter(Stream& stream, const TensorView& in, const TensorView& out) {
  // The result of this check is not needed, because NCCL itself detects that `in` and `out` share memory.
  detail::check_reduce_scatter(device_, stream, in, out, rank(), size());
  run("reduce_scatter", in, [&] {
    return nccl_.reduce_scatter(in.data, out.data, count_of(out), type_of(in.dtype), ncclSum, comm_,
                                stream.cuda_handle());
  });
}

void NcclExchange::all_gather(Stream& stream, const TensorView& in, const TensorView& out) {
  // The result of this check is not needed, because NCCL itself detects that `in` and `out` share memory.
  detail::check_all_gather(device_, stream, in, out, rank(), size());
  run("all_gather", in, [&] {
    return nccl_.all_gather(in.data, out.data, count_of(in), type_of(in.dtype), comm_, stream.cuda_handle());
  });
}

void NcclExchange::all_to_all(Stream& stream, const TensorView& in, const TensorView& out) {
  detail::check_all_to_all(device_, stream, in, out, size());
  run("all_to_all", in, [&] {
    const std::size_t n = count_of(in) / static_cast<std::size_t>(size());
    ncclResult_t result = nccl_.group_start();
    const auto begun = [&] { return result == ncclSuccess || result == ncclInProgress; };
    for (int r = 0; r < size() && begun(); ++r) {
      result = nccl_.send(part_of(in, r, size()), n, type_of(in.dtype), r, comm_, stream.cuda_handle());
      if (begun()) {
        result = nccl_.recv(part_of(out, r, size()), n, type_of(in.dtype), r, comm_, stream.cuda_handle());
      }
    }
    // Ends the group after an error, too, because NCCL would not execute later calls while a group is open.
    const ncclResult_t ended = nccl_.group_end();
    return begun() ? ended : result;
  });
}

void NcclExchange::broadcast(Stream& stream, const TensorView& data, int root) {
  detail::check_on(device_, "broadcast", stream, data);
  detail::check_rank("broadcast", root, size());
  run("broadcast", data, [&] {
    return nccl_.broadcast(data.data, data.data, count_of(data), type_of(data.dtype), root, comm_,
                           stream.cuda_handle());
  });
}

void NcclExchange::barrier(Stream& stream) {
  detail::check_stream(device_, "barrier", stream);
  const TensorView data = scratch_.view();
  run("barrier", data, [&] {
    return nccl_.all_reduce(data.data, data.data, 1, type_of(data.dtype), ncclSum, comm_, stream.cuda_handle());
  });
  counts_.bytes -= static_cast<std::int64_t>(data.bytes());  // scratch_ is no data of the caller, so it does not count
}

void NcclExchange::send(Stream& stream, const TensorView& data, int to) {
  detail::check_on(device_, "send", stream, data);
  detail::check_other_rank("send", to, rank(), size());
  run("send", data,
      [&] { return nccl_.send(data.data, count_of(data), type_of(data.dtype), to, comm_, stream.cuda_handle()); });
}

void NcclExchange::recv(Stream& stream, const TensorView& data, int from) {
  detail::check_on(device_, "recv", stream, data);
  detail::check_other_rank("recv", from, rank(), size());
  run("recv", data,
      [&] { return nccl_.recv(data.data, count_of(data), type_of(data.dtype), from, comm_, stream.cuda_handle()); });
}

void NcclExchange::check() {
  require_alive("check");
  const DeviceGuard guard(device_);
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = nccl_.async_error(comm_, &state);
  state = asked != ncclSuccess ? asked : state;
  if (state != ncclSuccess && state != ncclInProgress) {
    fail("while operations were under way", state);
  }
}

void NcclExchange::first_operation() {
  barrier(own_.stream());
  Event done(device_);
  own_.stream().record(done);
  if (!wait_for(done, *this, timeout_s_)) {
    fail("the first operation", ncclInProgress);
  }
  counts_ = {};
}

}  // namespace lockstep::comm
