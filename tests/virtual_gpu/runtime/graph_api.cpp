// Captures and launches graphs: the functions of the CUDA runtime, and the functions of Machine that implement them.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "machine.hpp"

namespace lockstep::standin {
namespace {

/// The calls that CUDA forbids in a thread that captures. They wait, query completion, or allocate or free memory
/// without a stream. cudaMemGetInfo is included because CUDA does not document it as safe.
constexpr std::array<std::string_view, 8> kUnsafe{
    "cudaMalloc",           "cudaMallocHost",        "cudaFree",      "cudaFreeHost", "cudaEventQuery",
    "cudaEventSynchronize", "cudaStreamSynchronize", "cudaMemGetInfo"};

/// Returns the nodes `ends` and all nodes on which they depend.
std::set<std::size_t> with_ancestors(const std::vector<Node>& nodes, const std::set<std::size_t>& ends) {
  std::set<std::size_t> found = ends;
  std::vector<std::size_t> open(ends.begin(), ends.end());
  while (!open.empty()) {
    const std::size_t at = open.back();
    open.pop_back();
    for (const std::size_t before : nodes[at].after) {
      if (found.insert(before).second) {
        open.push_back(before);
      }
    }
  }
  return found;
}

}  // namespace

cudaError_t Machine::refuse_during_capture(std::string_view name) {
  if (captures.empty() || std::find(kUnsafe.begin(), kUnsafe.end(), name) == kUnsafe.end()) {
    return cudaSuccess;
  }
  bool refused = false;
  for (const auto& capture : captures) {
    if (capture->thread == std::this_thread::get_id()) {
      capture->spoilt = true;
      refused = true;
    }
  }
  return refused ? fail(cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}

cudaError_t Machine::spoil(Queue& queue, cudaError_t error) {
  queue.capture->spoilt = true;
  return fail(error);
}

cudaError_t Machine::capture(Queue& queue, Work work) {
  Capture& into = *queue.capture;
  if (into.spoilt) {
    return fail(cudaErrorStreamCaptureInvalidated);
  }
  into.nodes.push_back({std::move(work), queue.device, queue.tail, queue.priority});
  queue.tail = {into.nodes.size() - 1};
  return cudaSuccess;
}

// Makes a stream wait for an event, if the stream, the event or both belong to a capture.
cudaError_t Machine::wait_in_capture(Queue& queue, const EventObject& event) {
  if (event.capture == nullptr) {
    if (event.ticket == nullptr) {
      return cudaSuccess;  // an event that was never recorded needs no wait
    }
    return spoil(queue, cudaErrorStreamCaptureIsolation);  // the event, even if complete, is not of the capture
  }
  if (!event.capture->active) {
    if (queue.capture != nullptr) {
      queue.capture->spoilt = true;
    }
    return violate("cudaStreamWaitEvent: the event belongs to a capture that has ended", cudaErrorCapturedEvent);
  }
  if (event.capture->spoilt || (queue.capture != nullptr && queue.capture->spoilt)) {
    return fail(cudaErrorStreamCaptureInvalidated);
  }
  if (queue.capture == nullptr) {  // the wait makes the stream part of the capture
    queue.capture = event.capture;
    queue.tail = event.after;
    return cudaSuccess;
  }
  if (queue.capture != event.capture) {
    event.capture->spoilt = true;
    return spoil(queue, cudaErrorStreamCaptureMerge);
  }
  queue.tail.insert(event.after.begin(), event.after.end());
  return cudaSuccess;
}

// Each node runs on a queue of its own. So the seed chooses among all orders that the graph allows.
void Machine::launch_graph(ExecutableObject& graph, Queue& queue) {
  const auto ticket = [] { return std::make_shared<Ticket>(); };
  if (graph.last != nullptr) {
    enqueue(queue, {.name = "cudaGraphLaunch", .awaits = graph.last});
  }
  launched_priorities.clear();
  for (const Node& node : graph.nodes) {
    launched_priorities.push_back(graph.node_priorities ? node.priority : queue.priority);
  }
  const auto start = ticket();
  std::vector<std::shared_ptr<Ticket>> done;
  std::vector<Queue*> places;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const auto spare = std::find_if(queues.begin(), queues.end(), [&](const auto& entry) {
      return entry.second->of_graphs && entry.second->work.empty() &&
             std::find(places.begin(), places.end(), entry.second.get()) == places.end();
    });
    if (spare != queues.end()) {
      places.push_back(spare->second.get());
    } else {
      auto made = std::make_unique<Queue>();
      made->number = static_cast<int>(queues.size()) + 1;
      made->alive = false;
      made->of_graphs = true;
      places.push_back(made.get());
      queues.emplace(made.get(), std::move(made));
    }
    places.back()->device = graph.nodes[i].device;
    done.push_back(ticket());
    done.back()->queue = places.back();
  }
  // Queues the work of all nodes before any node can run.
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    std::deque<Work>& work = places[i]->work;
    work.push_back({.name = "start of a graph", .awaits = start});
    for (const std::size_t before : graph.nodes[i].after) {
      work.push_back({.name = "edge of a graph", .awaits = done[before]});
    }
    const Work& captured = graph.nodes[i].work;
    work.push_back(captured.again ? captured.again() : captured);
    for (const auto& meeting : work.back().meetings) {
      meeting->queues.push_back(places[i]);
    }
    work.push_back({.name = "end of a node", .completes = done[i]});
  }
  graph.last = ticket();
  start->queue = graph.last->queue = &queue;
  queue.work.push_back({.name = "cudaGraphLaunch", .completes = start});
  for (const auto& node : done) {
    queue.work.push_back({.name = "cudaGraphLaunch", .awaits = node});
  }
  enqueue(queue, {.name = "end of a graph", .completes = graph.last});
}

}  // namespace lockstep::standin

namespace {

using namespace lockstep::standin;  // NOLINT(google-build-using-namespace): of this file's own functions

template <class Map>
auto* find(Map& map, void* handle) {
  const auto found = map.find(handle);
  return found != map.end() ? found->second.get() : nullptr;
}

}  // namespace

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  LOCKSTEP_CALL("cudaStreamBeginCapture");
  Queue* queue = call.machine.queue_of(stream);
  if (queue == nullptr || mode != cudaStreamCaptureModeThreadLocal) {
    return call.machine.violate("cudaStreamBeginCapture: not a stream, or a capture that disturbs other threads",
                                cudaErrorInvalidValue);
  }
  if (queue->legacy) {
    return call.machine.fail(cudaErrorStreamCaptureUnsupported);
  }
  if (queue->capture != nullptr) {
    return call.machine.fail(cudaErrorIllegalState);
  }
  auto capture = std::make_shared<Capture>();
  capture->origin = queue;
  capture->thread = std::this_thread::get_id();
  call.machine.captures.push_back(capture);
  queue->capture = std::move(capture);
  queue->tail.clear();
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  LOCKSTEP_CALL("cudaStreamIsCapturing");
  const Queue* queue = call.machine.queue_of(stream);
  if (queue == nullptr) {
    return call.machine.violate("cudaStreamIsCapturing: not a stream", cudaErrorInvalidResourceHandle);
  }
  *status = queue->capture == nullptr ? cudaStreamCaptureStatusNone
            : queue->capture->spoilt  ? cudaStreamCaptureStatusInvalidated
                                      : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  LOCKSTEP_CALL("cudaStreamEndCapture");
  Machine& machine = call.machine;
  Queue* queue = machine.queue_of(stream);
  *graph = nullptr;
  if (queue == nullptr || queue->capture == nullptr) {
    return machine.violate("cudaStreamEndCapture: nothing is being captured", cudaErrorIllegalState);
  }
  const std::shared_ptr<Capture> capture = queue->capture;
  if (capture->origin != queue) {
    return machine.spoil(*queue, cudaErrorStreamCaptureUnmatched);
  }
  if (capture->thread != std::this_thread::get_id()) {
    return machine.spoil(*queue, cudaErrorStreamCaptureWrongThread);
  }
  const bool joined = with_ancestors(capture->nodes, queue->tail).size() == capture->nodes.size();
  std::vector<Node> nodes = std::exchange(capture->nodes, {});  // events may keep the capture alive
  capture->active = false;
  std::erase(machine.captures, capture);
  for (const auto& [handle, other] : machine.queues) {
    if (other->capture == capture) {
      other->capture = nullptr;
      other->tail.clear();
    }
  }
  if (capture->spoilt) {
    return machine.fail(cudaErrorStreamCaptureInvalidated);
  }
  if (!joined) {
    return machine.fail(cudaErrorStreamCaptureUnjoined);
  }
  auto made = std::make_unique<GraphObject>(GraphObject{std::move(nodes)});
  *graph = reinterpret_cast<cudaGraph_t>(made.get());
  machine.graphs.emplace(made.get(), std::move(made));
  return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  LOCKSTEP_CALL("cudaGraphGetNodes");
  const GraphObject* object = find(call.machine.graphs, graph);
  if (object == nullptr || nodes != nullptr) {
    return call.machine.violate("cudaGraphGetNodes: not a graph, or more than the number of nodes is asked for",
                                cudaErrorInvalidValue);
  }
  *count = object->nodes.size();
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags) {
  LOCKSTEP_CALL("cudaGraphInstantiate");
  const GraphObject* object = find(call.machine.graphs, graph);
  if (object == nullptr || (flags & ~std::uint64_t{cudaGraphInstantiateFlagUseNodePriority}) != 0) {
    return call.machine.violate("cudaGraphInstantiate: not a graph, or an unexpected flag", cudaErrorInvalidValue);
  }
  auto made = std::make_unique<ExecutableObject>();
  made->nodes = object->nodes;
  made->node_priorities = (flags & cudaGraphInstantiateFlagUseNodePriority) != 0;
  *executable = reinterpret_cast<cudaGraphExec_t>(made.get());
  call.machine.executables.emplace(made.get(), std::move(made));
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  LOCKSTEP_CALL("cudaGraphLaunch");
  ExecutableObject* object = find(call.machine.executables, executable);
  Queue* queue = call.machine.queue_of(stream);
  if (object == nullptr || queue == nullptr || queue->capture != nullptr) {
    return call.machine.violate("cudaGraphLaunch: not an executable graph, not a stream, or one that is captured",
                                cudaErrorInvalidValue);
  }
  call.machine.launch_graph(*object, *queue);
  return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t executable, cudaStream_t stream) {
  LOCKSTEP_CALL("cudaGraphUpload");
  if (find(call.machine.executables, executable) == nullptr || call.machine.queue_of(stream) == nullptr) {
    return call.machine.violate("cudaGraphUpload: not an executable graph or not a stream", cudaErrorInvalidValue);
  }
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  Call call("cudaGraphDestroy");
  if (call.machine.graphs.erase(graph) == 0) {
    return call.machine.violate("cudaGraphDestroy: not a graph", cudaErrorInvalidValue);
  }
  return call.status;
}

// Launches that have begun still complete.
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  Call call("cudaGraphExecDestroy");
  if (call.machine.executables.erase(executable) == 0) {
    return call.machine.violate("cudaGraphExecDestroy: not an executable graph", cudaErrorInvalidValue);
  }
  return call.status;
}

}  // extern "C"
