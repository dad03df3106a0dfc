#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include <lockstep/runtime/stream/stream.hpp>

namespace lockstep {

namespace detail {
struct GraphState;
}

/// A CUDA graph: work of CUDA streams, recorded once and launched as one. It holds kernels, copies and memsets with the
/// arguments of the capture, in the order that streams and events gave them. A launch is one call of the host, whatever
/// the graph's size. Move-only; one thread at a time uses it.
///
/// A graph holds the work that the captured function enqueues on the stream, and on every stream that waits for an
/// event recorded in the capture (fork). The first stream must wait for each such stream before the function ends
/// (join). Addresses and numbers are those of the capture: memory must stay where it is, and a value that changes from
/// launch to launch must be read from memory.
///
/// During a capture nothing runs. CUDA refuses every call that waits for the device, asks whether work is complete, or
/// allocates or frees memory outside of a stream's order; such a call invalidates the capture. On the captured streams
///   Stream::record, wait      between streams of the capture; an event recorded there is never complete on its own
///   events with timing        StateError: work of a graph does not run at the time of the capture
///   waits for host events     StateError, unless they are complete
///   copies of pageable memory StateError: a graph copies page-locked memory
class Graph {
 public:
  Graph() noexcept;  ///< holds nothing
  /// Runs f once and captures the work that f enqueues, ready to be launched; none of the work runs here. Calls of
  /// other threads are not affected (thread-local capture).
  ///
  /// UnsupportedError for a host stream and CUDA's legacy default stream. StateError when the stream is already being
  /// captured, when a stream was not joined, or when f made a call that a capture forbids and did not report it.
  /// Exceptions of f pass, with a note that they happened during a capture. In every case the capture ends and the
  /// streams can be used as before.
  [[nodiscard]] static Graph capture(Stream& stream, const std::function<void()>& f);

  Graph(Graph&&) noexcept;
  Graph& operator=(Graph&&) noexcept;
  /// Launches under way continue; the caller keeps the memory that they use.
  ~Graph();

  /// Enqueues the whole graph on a stream of the device that it was captured on, after the stream's earlier work and
  /// after earlier launches of this graph. Later work of the stream starts when the whole graph is done. StateError
  /// when empty, DeviceError for a stream of another device.
  void launch(Stream& stream);
  /// Transfers the graph to the device now, so that the first launch costs no more than later launches.
  void upload(Stream& stream);

  [[nodiscard]] bool given() const noexcept { return state_ != nullptr; }
  [[nodiscard]] std::size_t nodes() const;  ///< kernels, copies, memsets and the like; 0 when empty

 private:
  explicit Graph(std::unique_ptr<detail::GraphState> state) noexcept;
  std::unique_ptr<detail::GraphState> state_;
};

/// True while the stream is captured, as the first stream of a capture or forked from it. False on host streams.
[[nodiscard]] bool is_capturing(const Stream& stream);

}  // namespace lockstep
