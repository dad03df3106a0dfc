#include <lockstep/comm/launch/detail/recorded_communicator.hpp>

#include <chrono>
#include <utility>

namespace lockstep::comm::detail {

namespace {

class RecordedCommunicator final : public Communicator {
 public:
  RecordedCommunicator(std::unique_ptr<Communicator> inner, FlightRecorder& log)
      : Communicator(inner->rank(), inner->size()), inner_(std::move(inner)), log_(log) {}

  [[nodiscard]] std::string_view backend() const override { return inner_->backend(); }
  [[nodiscard]] bool can_overlap() const override { return inner_->can_overlap(); }
  [[nodiscard]] bool any_thread() const override { return inner_->any_thread(); }
  [[nodiscard]] bool can_be_captured() const override { return inner_->can_be_captured(); }
  void all_reduce(Stream& stream, const TensorView& data) override {
    note(Operation::all_reduce, data);
    inner_->all_reduce(stream, data);
  }
  void reduce_scatter(Stream& stream, const TensorView& in, const TensorView& out) override {
    note(Operation::reduce_scatter, in);
    inner_->reduce_scatter(stream, in, out);
  }
  void all_gather(Stream& stream, const TensorView& in, const TensorView& out) override {
    note(Operation::all_gather, in);
    inner_->all_gather(stream, in, out);
  }
  void all_to_all(Stream& stream, const TensorView& in, const TensorView& out) override {
    note(Operation::all_to_all, in);
    inner_->all_to_all(stream, in, out);
  }
  void broadcast(Stream& stream, const TensorView& data, int root) override {
    note(Operation::broadcast, data, root);
    inner_->broadcast(stream, data, root);
  }
  void barrier(Stream& stream) override {
    note(Operation::barrier, {});
    inner_->barrier(stream);
  }
  void send(Stream& stream, const TensorView& data, int to) override { inner_->send(stream, data, to); }
  void recv(Stream& stream, const TensorView& data, int from) override { inner_->recv(stream, data, from); }
  [[nodiscard]] std::unique_ptr<Communicator> split(int color, int key) override {
    note(Operation::split, {});
    return inner_->split(color, key);
  }
  void check() override { inner_->check(); }
  [[nodiscard]] CommunicatorCounts counts() const override { return inner_->counts(); }
  [[nodiscard]] std::unique_ptr<MemoryResource> exchange_memory() override { return inner_->exchange_memory(); }
  [[nodiscard]] Communicator& unwrapped() override { return inner_->unwrapped(); }

 private:
  void note(Operation operation, const TensorView& data, int root = 0) noexcept {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    log_.add({.operation = operation,
              .dtype = data.dtype,
              .elements = data.numel(),
              .root = root,
              .at_ns = std::chrono::nanoseconds(now).count()});
  }

  std::unique_ptr<Communicator> inner_;
  FlightRecorder& log_;
};

}  // namespace

std::unique_ptr<Communicator> recorded(std::unique_ptr<Communicator> inner, FlightRecorder& log) {
  return std::make_unique<RecordedCommunicator>(std::move(inner), log);
}

}  // namespace lockstep::comm::detail
