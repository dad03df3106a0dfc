#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include <lockstep/runtime/stream/stream.hpp>

namespace lockstep {

namespace detail {
struct GraphState;
}

/// Work of CUDA streams that was written down once and is launched as one: kernels, copies and memsets with their
/// arguments as they were, ordered as the streams and events ordered them. A launch costs the host one call, whatever
/// the graph holds. Move-only; used by one thread at a time.
///
/// What belongs to a graph: what the captured function enqueues on the stream, and on every stream that waits for an
/// event recorded in it (fork), for as long as the function runs. Such a stream must be waited for by the first one
/// before the function ends (join). Arguments are addresses and numbers of the time of the capture: memory must stay
/// where it is, and what changes from launch to launch has to be read from memory.
///
/// While it is captured nothing runs, and whatever waits for the device, asks whether something is complete, or takes
/// or gives back memory outside of a stream's order is refused by CUDA and spoils the capture. On these streams
///   Stream::record, wait      between streams of the capture; an event recorded there is never complete on its own
///   events with timing        StateError: nothing of a graph happens at a time of the capture
///   waits for host events     StateError, unless they are complete
///   copies of pageable memory StateError: a graph copies page-locked memory
class Graph {
 public:
  Graph() noexcept;  ///< holds nothing
  /// Runs f once and keeps what it has enqueued, ready to be launched; nothing of it is executed here. Calls of other
  /// threads go on undisturbed (thread-local capture).
  ///
  /// UnsupportedError: the stream is a host stream or CUDA's legacy default stream. StateError: it is being captured
  /// already; a stream was not joined; a call was made that is not allowed and nobody reported it. What f throws goes
  /// on, with a note that it happened during a capture. Whatever happens, the capture is ended and the streams can be
  /// used as before.
  [[nodiscard]] static Graph capture(Stream& stream, const std::function<void()>& f);

  Graph(Graph&&) noexcept;
  Graph& operator=(Graph&&) noexcept;
  /// Launches under way go on; the memory that they use is the caller's to keep.
  ~Graph();

  /// Enqueues all of it on a stream of the device it was captured on: after what the stream holds and after earlier
  /// launches of this graph. Nothing behind it on the stream starts before all of it is done. StateError when empty,
  /// DeviceError for another device's stream.
  void launch(Stream& stream);
  /// Moves to the device what the first launch would have to, so that it costs no more than the others.
  void upload(Stream& stream);

  [[nodiscard]] bool given() const noexcept { return state_ != nullptr; }
  [[nodiscard]] std::size_t nodes() const;  ///< kernels, copies, memsets and the like; 0 when empty

 private:
  explicit Graph(std::unique_ptr<detail::GraphState> state) noexcept;
  std::unique_ptr<detail::GraphState> state_;
};

/// A graph is being captured from the stream (its own, or forked from it). False on host streams.
[[nodiscard]] bool is_capturing(const Stream& stream);

}  // namespace lockstep
