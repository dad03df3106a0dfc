#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <typeindex>
#include <utility>
#include <vector>

#include <lockstep/runtime/machine/device.hpp>
#include <lockstep/runtime/memory/memory_resource.hpp>
#include <lockstep/runtime/stream/stream.hpp>

namespace lockstep {

/// Bytes moved by copy() through a context, per direction.
struct CopyCounts {
  std::uint64_t host_to_host = 0;
  std::uint64_t host_to_device = 0;
  std::uint64_t device_to_host = 0;
  std::uint64_t device_to_device = 0;
};

/// Device + stream + memory resource + library handles: the first argument of everything that computes. Holds no
/// random state, no rank and no communicator. Used by one thread at a time; several contexts are independent. Is
/// either a CpuContext or a CudaContext.
class Context {
 public:
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  virtual ~Context() = default;

  [[nodiscard]] Device device() const { return device_; }
  [[nodiscard]] Stream& stream() { return *stream_; }
  [[nodiscard]] MemoryResource& memory() { return *memory_; }
  [[nodiscard]] CopyCounts& copied() { return copied_; }
  void synchronize() { stream_->synchronize(); }
  /// Reports every call that makes its caller wait for this context's stream (Stream::on_synchronisation).
  void on_synchronisation(SyncReport report) { stream_->on_synchronisation(std::move(report)); }

  /// State of a library (oneDNN engine, cuDNN handle) that lives as long as the context: made by `make()` on first
  /// use, found by its type afterwards. Library<T>() of a provider is its only caller.
  template <class T, class Make>
  T& library(Make&& make) {
    for (auto& entry : libraries_) {
      if (entry.type == std::type_index(typeid(T))) {
        return *static_cast<T*>(entry.state.get());
      }
    }
    std::shared_ptr<T> state = std::forward<Make>(make)();
    libraries_.push_back({std::type_index(typeid(T)), state});
    return *state;
  }

 protected:
  Context(Device device, Stream* borrowed_stream, std::unique_ptr<Stream> owned_stream, MemoryResource* borrowed_memory,
          std::unique_ptr<MemoryResource> owned_memory);

 private:
  struct Library {
    std::type_index type;
    std::shared_ptr<void> state;
  };
  Device device_;
  std::unique_ptr<Stream> owned_stream_;
  std::unique_ptr<MemoryResource> owned_memory_;
  Stream* stream_;
  MemoryResource* memory_;
  CopyCounts copied_;
  std::vector<Library> libraries_;  ///< destroyed before stream and memory
};

struct CpuContextOptions {
  int threads = 0;                   ///< threads of one op; 0: what OpenMP would use here
  Stream* stream = nullptr;          ///< borrowed host stream; nullptr: an inline stream of its own
  MemoryResource* memory = nullptr;  ///< borrowed; nullptr: a HostMemoryResource of its own
};

/// Computes on the host. Changes no process-wide setting: the thread count is passed to each parallel region.
class CpuContext final : public Context {
 public:
  using Options = CpuContextOptions;
  explicit CpuContext(const Options& options = {});
  [[nodiscard]] int threads() const { return threads_; }

 private:
  int threads_;
};

struct CudaContextOptions {
  /// A stream that the host program owns and keeps alive, as Stream::borrow_cuda() takes it: a null handle is CUDA's
  /// legacy default stream of the device. Not given: the context makes a non-blocking stream of its own.
  std::optional<CUstream_st*> stream = std::nullopt;
  MemoryResource* memory = nullptr;  ///< borrowed; nullptr: a CudaPoolResource of its own
  /// Most bytes of its own resource that may be in use at once; 0: no limit. UsageError beside a borrowed one.
  std::size_t memory_limit = 0;
};

/// Computes on one CUDA device. Never leaves the calling thread's current device changed. Declared in every build. The
/// constructor begins with check_gpu() (gpu_check.hpp): DeviceError that says why the device cannot be used, in a build
/// without CUDA too.
class CudaContext final : public Context {
 public:
  using Options = CudaContextOptions;
  explicit CudaContext(Device device, const Options& options = {});
};

/// A context on any device.
[[nodiscard]] std::unique_ptr<Context> make_context(Device device);

}  // namespace lockstep
