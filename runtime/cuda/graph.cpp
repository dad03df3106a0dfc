
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/cuda/check.hpp>
#include <lockstep/runtime/cuda/device_guard.hpp>
#include <lockstep/runtime/detail/cuda_backend.hpp>
#include <lockstep/runtime/stream/graph.hpp>

namespace lockstep::detail {
namespace {

/// Owns the cudaGraph_t of a capture. capture_cuda_graph() makes the executable graph from the cudaGraph_t; then the
/// destructor destroys the cudaGraph_t.
class Captured {
 public:
  explicit Captured(Device device) : device_(device) {}
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;
  ~Captured() {
    if (graph != nullptr) {
      const cuda::DeviceGuard guard(device_, std::nothrow);
      cuda::ignore(cudaGraphDestroy(graph));
    }
  }
  cudaGraph_t graph = nullptr;

 private:
  Device device_;
};

/// A capture in progress. If f() throws, the destructor ends the capture, because the stream must not stay captured.
class Capture {
 public:
  explicit Capture(const Stream& stream) : device_(stream.device()), stream_(stream.cuda_handle()) {
    const cuda::DeviceGuard guard(device_);
    LOCKSTEP_CUDA_CHECK(device_, cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  ~Capture() {
    if (!ended_) {
      Captured dropped(device_);
      const cuda::DeviceGuard guard(device_, std::nothrow);
      cuda::ignore(cudaStreamEndCapture(stream_, &dropped.graph));
    }
  }

  void end(Captured& captured) {
    const cuda::DeviceGuard guard(device_);
    const cudaError_t status = cudaStreamEndCapture(stream_, &captured.graph);
    bool capturing = false;
    if (status != cudaSuccess) {
      cuda::ignore(status);
      cudaStreamCaptureStatus still = cudaStreamCaptureStatusNone;
      cuda::ignore(cudaStreamIsCapturing(stream_, &still));
      capturing = still != cudaStreamCaptureStatusNone;  // true: the destructor must end the capture
    }
    ended_ = !capturing;
    require<StateError>(status != cudaErrorStreamCaptureUnjoined, "graph capture on ", device_,
                        ": a stream waited for an event of the capture (fork) and was not waited for at the end of it "
                        "(join), expected a wait for that stream");
    require<StateError>(status != cudaErrorStreamCaptureInvalidated, "graph capture on ", device_,
                        ": a call was made that is not allowed during a capture and that nobody reported, expected no "
                        "call such as memory given back or a wait for the device");
    cuda::check(status, "cudaStreamEndCapture(stream_, &captured.graph)", device_);
  }

 private:
  Device device_;
  CUstream_st* stream_;
  bool ended_ = false;
};

class CudaGraphState final : public GraphState {
 public:
  CudaGraphState(Device d, std::size_t count, cudaGraph_t graph) : GraphState(d, count) {
    const cuda::DeviceGuard guard(device);
    // Capture copies the streams' priorities to the nodes. Without this flag, all nodes would get the priority of the
    // stream that launches the graph.
    LOCKSTEP_CUDA_CHECK(device, cudaGraphInstantiate(&executable_, graph, cudaGraphInstantiateFlagUseNodePriority));
  }
  ~CudaGraphState() override {
    const cuda::DeviceGuard guard(device, std::nothrow);
    cuda::ignore(cudaGraphExecDestroy(executable_));
  }
  void launch(CUstream_st* stream) override {
    const cuda::DeviceGuard guard(device);
    LOCKSTEP_CUDA_CHECK(device, cudaGraphLaunch(executable_, stream));
  }
  void upload(CUstream_st* stream) override {
    const cuda::DeviceGuard guard(device);
    LOCKSTEP_CUDA_CHECK(device, cudaGraphUpload(executable_, stream));
  }

 private:
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace

std::unique_ptr<GraphState> capture_cuda_graph(Stream& stream, const std::function<void()>& f) {
  const Device device = stream.device();
  require<UnsupportedError>(stream.cuda_handle() != cudaStreamLegacy, "graph capture on ", device,
                            ": the stream is CUDA's legacy default stream, which CUDA cannot capture; expected a "
                            "stream that was made (cudaStreamCreate, Stream::cuda)");
  Captured captured(device);
  {
    Capture capture(stream);
    try {
      f();
    } catch (Error& error) {
      error.annotate(concat("graph capture on ", device));
      throw;
    }
    capture.end(captured);
  }
  std::size_t nodes = 0;
  {
    const cuda::DeviceGuard guard(device);
    LOCKSTEP_CUDA_CHECK(device, cudaGraphGetNodes(captured.graph, nullptr, &nodes));
  }
  return std::make_unique<CudaGraphState>(device, nodes, captured.graph);
}

bool cuda_is_capturing(Device device, CUstream_st* stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cuda::DeviceGuard guard(device);
  LOCKSTEP_CUDA_CHECK(device, cudaStreamIsCapturing(stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace lockstep::detail
