#pragma once

#include <memory>
#include <string_view>

#include <lockstep/comm/communicator.hpp>

namespace lockstep::comm {

/// Passes every call on to another communicator. A test overrides the calls that shall fail.
class WrappedCommunicator : public Communicator {
 public:
  explicit WrappedCommunicator(Communicator& inner) : Communicator(inner.rank(), inner.size()), inner_(inner) {}
  [[nodiscard]] std::string_view backend() const override { return "wrapped"; }
  [[nodiscard]] bool can_overlap() const override { return inner_.can_overlap(); }
  void all_reduce(Stream& s, const TensorView& data) override { inner_.all_reduce(s, data); }
  void reduce_scatter(Stream& s, const TensorView& in, const TensorView& out) override {
    inner_.reduce_scatter(s, in, out);
  }
  void all_gather(Stream& s, const TensorView& in, const TensorView& out) override { inner_.all_gather(s, in, out); }
  void all_to_all(Stream& s, const TensorView& in, const TensorView& out) override { inner_.all_to_all(s, in, out); }
  void broadcast(Stream& s, const TensorView& data, int root) override { inner_.broadcast(s, data, root); }
  void barrier(Stream& s) override { inner_.barrier(s); }
  void send(Stream& s, const TensorView& data, int to) override { inner_.send(s, data, to); }
  void recv(Stream& s, const TensorView& data, int from) override { inner_.recv(s, data, from); }
  [[nodiscard]] std::unique_ptr<Communicator> split(int color, int key) override { return inner_.split(color, key); }
  void check() override { inner_.check(); }
  [[nodiscard]] CommunicatorCounts counts() const override { return inner_.counts(); }

 private:
  Communicator& inner_;
};

}  // namespace lockstep::comm
