#include <lockstep/runtime/stream/stream.hpp>

#include <lockstep/runtime/detail/cuda_backend.hpp>
#include <lockstep/runtime/detail/stream_state.hpp>

namespace lockstep {
namespace detail {

void* StreamState::acquire_slot() {
  throw StateError(concat("enqueue: the stream is on ", device, ", expected a host stream"));
}

void StreamState::publish_slot(const TaskVTable&) {
  acquire_slot();
}

CUstream_st* StreamState::cuda_handle() const {
  throw StateError(concat("cuda_handle: the stream is on ", device, ", expected a CUDA stream"));
}

void StreamState::launch_dependently(bool /*on*/) {
  throw StateError(concat("launch_dependently: the stream is on ", device, ", expected a CUDA stream"));
}

}  // namespace detail

namespace {

template <class State>
State& used(const State* state, const char* what) {
  require<StateError>(state != nullptr, what, " was moved from, expected use before the move");
  return const_cast<State&>(*state);
}

}  // namespace

Stream::Stream(std::unique_ptr<detail::StreamState> state) : state_(std::move(state)) {}
Stream::Stream(Stream&&) noexcept = default;
Stream& Stream::operator=(Stream&&) noexcept = default;
Stream::~Stream() = default;  // the destructor of `state_` waits, and reports the wait

Stream Stream::host_inline() {
  return Stream(detail::make_inline_stream_state());
}
Stream Stream::host_worker(std::string_view name) {
  return Stream(detail::make_worker_stream_state(name));
}

Stream Stream::cuda(Device device, int priority) {
  require<DeviceError>(device.kind == DeviceKind::cuda, "stream: device is ", device, ", expected a CUDA device");
  return Stream(detail::make_cuda_stream_state(device, priority));
}

Stream Stream::borrow_cuda(Device device, CUstream_st* stream) {
  require<DeviceError>(device.kind == DeviceKind::cuda, "stream: device is ", device, ", expected a CUDA device");
  return Stream(detail::borrow_cuda_stream_state(device, stream));
}

Device Stream::device() const {
  return used(state_.get(), "stream").device;
}
bool Stream::is_inline() const {
  return used(state_.get(), "stream").is_inline;
}
CUstream_st* Stream::cuda_handle() const {
  return used(state_.get(), "stream").cuda_handle();
}
void Stream::launch_dependently(bool on) {
  used(state_.get(), "stream").launch_dependently(on);
}
bool Stream::launches_dependently() const {
  return used(state_.get(), "stream").dependent_launches;
}
void* Stream::acquire_slot() {
  return used(state_.get(), "stream").acquire_slot();
}
void Stream::publish_slot(const detail::TaskVTable& vtable) {
  state_->publish_slot(vtable);
}
void Stream::synchronize() {
  auto& state = used(state_.get(), "stream");
  if (state.is_inline) {
    return state.synchronize();  // returns at once, because work of an inline stream is complete when enqueue() returns
  }
  const SyncScope scope(state.sync_log, state.device, "synchronize", SyncReason::requested);
  state.synchronize();
}

void Stream::on_synchronisation(SyncReport report) {
  used(state_.get(), "stream").sync_log.report = std::move(report);
}
detail::SyncLog* Stream::sync_log() const noexcept {
  return state_ != nullptr && state_->sync_log.report ? &state_->sync_log : nullptr;
}

void Stream::record(Event& event) {
  auto& state = used(state_.get(), "stream");
  const Device& expected = used(event.state_.get(), "event").device;
  require<DeviceError>(expected == state.device, "record: the event is for ", expected, ", the stream is on ",
                       state.device, ", expected both on one device");
  state.record(event.state_);
}

void Stream::wait(const Event& event) {
  auto& state = used(state_.get(), "stream");
  used(event.state_.get(), "event");
  state.wait(event.state_);
}

Event::Event(Device device, Timing timing)
    : state_(device.kind == DeviceKind::cuda ? detail::make_cuda_event_state(device, timing == Timing::on)
                                             : detail::make_host_event_state(timing == Timing::on)) {}
Event::Event(Event&&) noexcept = default;
Event& Event::operator=(Event&&) noexcept = default;
Event::~Event() = default;

bool Event::complete() const {
  return used(state_.get(), "event").complete();
}
void Event::synchronize() const {
  used(state_.get(), "event").synchronize();
}

double Event::seconds_since(const Event& earlier) const {
  const auto& from = used(earlier.state_.get(), "event");
  const auto& to = used(state_.get(), "event");
  require<StateError>(from.timing && to.timing,
                      "seconds_since: an event measures no time, expected both to be made with Timing::on");
  require<StateError>(from.device == to.device, "seconds_since: the events are on ", from.device, " and ", to.device,
                      ", expected both on one device");
  require<StateError>(from.complete() && to.complete(),
                      "seconds_since: an event is not complete, expected both to be complete");
  return to.seconds_since(from);
}

}  // namespace lockstep
