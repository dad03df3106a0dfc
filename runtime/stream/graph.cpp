#include <lockstep/runtime/stream/graph.hpp>

#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/detail/cuda_backend.hpp>

namespace lockstep {
namespace {

detail::GraphState& used(const std::unique_ptr<detail::GraphState>& state, const char* what, const Stream& stream) {
  require<StateError>(state != nullptr, what, ": the graph is empty, expected a captured one");
  require<DeviceError>(stream.device() == state->device, what, ": the graph is for ", state->device,
                       ", the stream is on ", stream.device(), ", expected both on one device");
  return *state;
}

}  // namespace

Graph::Graph() noexcept = default;
Graph::Graph(std::unique_ptr<detail::GraphState> state) noexcept : state_(std::move(state)) {}
Graph::Graph(Graph&&) noexcept = default;
Graph& Graph::operator=(Graph&&) noexcept = default;
Graph::~Graph() = default;

Graph Graph::capture(Stream& stream, const std::function<void()>& f) {
  require<UnsupportedError>(stream.device().kind == DeviceKind::cuda, "graph capture: the stream is on ",
                            stream.device(), ", expected a CUDA stream");
  require<StateError>(!is_capturing(stream),
                      "graph capture: a graph is being captured from the stream already, expected its end before");
  return Graph(detail::capture_cuda_graph(stream, f));
}

void Graph::launch(Stream& stream) {
  used(state_, "graph launch", stream).launch(stream.cuda_handle());
}

void Graph::upload(Stream& stream) {
  used(state_, "graph upload", stream).upload(stream.cuda_handle());
}

std::size_t Graph::nodes() const {
  return state_ != nullptr ? state_->nodes : 0;
}

bool is_capturing(const Stream& stream) {
  return stream.device().kind == DeviceKind::cuda && detail::cuda_is_capturing(stream.device(), stream.cuda_handle());
}

}  // namespace lockstep
