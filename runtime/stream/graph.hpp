#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include <lockstep/runtime/stream/stream.hpp>

namespace lockstep {

namespace detail {
struct GraphState;
}

/// A CUDA graph: work of CUDA streams that is recorded once and launched as a whole. A graph holds kernels, copies and
/// memsets with the arguments of the capture. Streams and events of the capture determine the order of this work. A
/// launch is one call of the host, whatever the graph's size. Can only be moved; only one thread at a time may use a
/// graph.
///
/// A graph holds the work that the captured function enqueues on the stream, and on every stream that waits for an
/// event recorded in the capture (fork). The first stream must wait for each such stream before the function ends
/// (join). A launch uses the addresses and values of the capture. Therefore the caller must not move memory, and must
/// keep a value that changes from launch to launch in memory.
///
/// During a capture nothing runs. CUDA refuses three kinds of calls and invalidates the capture: calls that wait for
/// the device, calls that query whether work is complete, and calls that allocate or free memory outside of a stream's
/// order. Rules for the captured streams:
///   Stream::record, wait      only between streams of the capture
///   Event::complete()         StateError for an event that was recorded in the capture
///   events with timing        StateError: work of a graph does not run at the time of the capture
///   waits for host events     StateError, unless they are complete
///   copies of pageable memory StateError: a graph copies page-locked memory
class Graph {
 public:
  Graph() noexcept;  ///< makes an empty graph
  /// Runs `f` once and captures the work that `f` enqueues, without running this work. The result can be launched. Does
  /// not affect calls of other threads (thread-local capture).
  ///
  /// Throws UnsupportedError for a host stream and for CUDA's legacy default stream. Throws StateError if the stream is
  /// already being captured, if a stream was not joined, or if f made a forbidden call and ignored the call's error.
  /// Rethrows exceptions of f, with a note that they happened during a capture. In every case the capture ends, and the
  /// streams can be used as before.
  [[nodiscard]] static Graph capture(Stream& stream, const std::function<void()>& f);

  Graph(Graph&&) noexcept;
  Graph& operator=(Graph&&) noexcept;
  /// Does not wait: running launches continue, and the caller must keep the memory that these launches use.
  ~Graph();

  /// Enqueues the whole graph on a stream of the device on which it was captured. The graph runs after the stream's
  /// earlier work and after earlier launches of this graph. Later work of the stream starts after the whole graph.
  /// Throws StateError for an empty graph, DeviceError for a stream of another device.
  void launch(Stream& stream);
  /// Transfers the graph to the device now, so that the first launch takes no longer than later launches.
  void upload(Stream& stream);

  [[nodiscard]] bool given() const noexcept { return state_ != nullptr; }
  [[nodiscard]] std::size_t nodes() const;  ///< number of nodes (kernels, copies, memsets, ..); 0 for an empty graph

 private:
  explicit Graph(std::unique_ptr<detail::GraphState> state) noexcept;
  std::unique_ptr<detail::GraphState> state_;
};

/// Returns true while the stream is being captured, as a capture's first stream or as a stream forked from it.
/// Returns false for host streams.
[[nodiscard]] bool is_capturing(const Stream& stream);

}  // namespace lockstep
