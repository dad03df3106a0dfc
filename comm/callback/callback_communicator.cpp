#include <lockstep/comm/callback/callback_communicator.hpp>

#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include <lockstep/comm/detail/checks.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::comm {
namespace {

class CallbackCommunicator final : public Communicator {
 public:
  explicit CallbackCommunicator(HostCollectives collectives)
      : Communicator(collectives.rank, collectives.size), host_(std::move(collectives)) {}

  [[nodiscard]] std::string_view backend() const override { return "callback"; }
  [[nodiscard]] bool can_overlap() const override { return false; }

  void all_reduce(Stream& stream, const TensorView& data) override {
    check_tensor("all_reduce", stream, data);
    detail::check_summable("all_reduce", data.dtype);
    sum(data);
    count(data.bytes());
  }

  void reduce_scatter(Stream& stream, const TensorView& in, const TensorView& out) override {
    detail::check_reduce_scatter(Device::cpu(), stream, in, out, rank(), size());
    require_inline("reduce_scatter", stream);
    std::vector<std::byte> all(in.bytes());
    copy_bytes(all.data(), in.data, in.bytes());
    sum(TensorView(all.data(), in.dtype, Device::cpu(), {in.numel()}));
    copy_bytes(out.data, all.data() + static_cast<std::size_t>(rank()) * out.bytes(), out.bytes());
    count(in.bytes());
  }

  void all_gather(Stream& stream, const TensorView& in, const TensorView& out) override {
    const bool in_place = detail::check_all_gather(Device::cpu(), stream, in, out, rank(), size());
    require_inline("all_gather", stream);
    if (in_place) {
      // Copies the input, because the host program's all_gather must get different memory for input and output.
      std::vector<std::byte> mine(in.bytes());
      copy_bytes(mine.data(), in.data, in.bytes());
      gather(mine.data(), out.data, in.bytes());
    } else {
      gather(in.data, out.data, in.bytes());
    }
    count(in.bytes());
  }

  void all_to_all(Stream& stream, const TensorView& in, const TensorView& out) override {
    detail::check_all_to_all(Device::cpu(), stream, in, out, size());
    require_inline("all_to_all", stream);
    const std::size_t part = in.bytes() / static_cast<std::size_t>(size());
    std::vector<std::byte> all(in.bytes() * static_cast<std::size_t>(size()));
    gather(in.data, all.data(), in.bytes());
    for (int r = 0; r < size(); ++r) {
      copy_bytes(static_cast<std::byte*>(out.data) + static_cast<std::size_t>(r) * part,
                 all.data() + static_cast<std::size_t>(r) * in.bytes() + static_cast<std::size_t>(rank()) * part, part);
    }
    count(in.bytes());
  }

  void broadcast(Stream& stream, const TensorView& data, int root) override {
    check_tensor("broadcast", stream, data);
    detail::check_rank("broadcast", root, size());
    if (data.bytes() > 0) {
      host_.broadcast(data.data, data.bytes(), root);
    }
    count(data.bytes());
  }

  void barrier(Stream& stream) override {
    detail::check_stream("barrier", stream);
    require_inline("barrier", stream);
    host_.barrier();
    count(0);
  }

  void send(Stream& stream, const TensorView& data, int to) override {
    check_tensor("send", stream, data);
    detail::check_other_rank("send", to, rank(), size());
    refuse("send");
  }
  void recv(Stream& stream, const TensorView& data, int from) override {
    check_tensor("recv", stream, data);
    detail::check_other_rank("recv", from, rank(), size());
    refuse("recv");
  }
  [[nodiscard]] std::unique_ptr<Communicator> split(int color, int /*key*/) override {
    require<UsageError>(color >= 0, "split: color is ", color, ", expected 0 or more");
    refuse("split");
  }

  [[nodiscard]] CommunicatorCounts counts() const override { return counts_; }

 private:
  static void require_inline(std::string_view op, const Stream& stream) {
    require<StateError>(stream.is_inline(), op,
                        ": the host program's functions are called in the calling thread, "
                        "expected an inline stream");
  }
  static void check_tensor(std::string_view op, const Stream& stream, const TensorView& view) {
    detail::check_host(op, stream, view);
    require_inline(op, stream);
  }
  [[noreturn]] static void refuse(std::string_view op) {
    throw UnsupportedError(
        concat(op, ": a communicator of the host program's functions cannot do that, expected another communicator"));
  }
  static void copy_bytes(void* to, const void* from, std::size_t bytes) {
    if (bytes > 0) {
      std::memcpy(to, from, bytes);
    }
  }
  void sum(const TensorView& data) const {
    if (data.numel() > 0) {
      host_.all_reduce(data);
    }
  }
  void gather(const void* in, void* out, std::size_t bytes) const {
    if (bytes > 0) {
      host_.all_gather(in, out, bytes);
    }
  }
  void count(std::size_t bytes) {
    ++counts_.calls;
    counts_.bytes += static_cast<std::int64_t>(bytes);
  }

  HostCollectives host_;
  CommunicatorCounts counts_;
};

}  // namespace

std::unique_ptr<Communicator> make_callback_communicator(HostCollectives collectives) {
  require<UsageError>(collectives.size >= 1 && collectives.rank >= 0 && collectives.rank < collectives.size,
                      "callback communicator: rank ", collectives.rank, " of ", collectives.size,
                      ", expected 0 <= rank < size");
  const auto need = [](bool given, const char* name) {
    require<UsageError>(given, "callback communicator: ", name, " is missing, expected a function");
  };
  need(static_cast<bool>(collectives.all_reduce), "all_reduce");
  need(static_cast<bool>(collectives.broadcast), "broadcast");
  need(static_cast<bool>(collectives.all_gather), "all_gather");
  need(static_cast<bool>(collectives.barrier), "barrier");
  return std::make_unique<CallbackCommunicator>(std::move(collectives));
}

}  // namespace lockstep::comm
