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

/// Bytes that copy() has moved through a context, for each direction.
struct CopyCounts {
  std::uint64_t host_to_host = 0;
  std::uint64_t host_to_device = 0;
  std::uint64_t device_to_host = 0;
  std::uint64_t device_to_device = 0;
};

/// Holds a device, a stream, a memory resource and library handles. A context is the first argument of every function
/// that computes. Holds no random state, no rank and no communicator. One thread at a time may use a context; several
/// contexts are independent. A context is either a CpuContext or a CudaContext. The constructors throw UnsupportedError
/// if the processor lacks instructions for which the library was built.
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
  /// Sets a function that is called after each wait of a caller for this context's stream (Stream::on_synchronisation).
  void on_synchronisation(SyncReport report) { stream_->on_synchronisation(std::move(report)); }

  /// Returns the object of type T that this context keeps for a library or a kernel, for example a cuDNN handle. The
  /// first call makes the object with `make()`. Later calls find the object by its type, so each user of this function
  /// needs a type of its own. The object lives as long as the context.
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
  std::vector<Library> libraries_;  ///< destroyed before the stream and the memory resource
};

struct CpuContextOptions {
  int threads = 0;                   ///< threads of one op, at most OpenMP's limit; 0 for OpenMP's default
  Stream* stream = nullptr;          ///< borrowed host stream; nullptr: the context makes an inline stream
  MemoryResource* memory = nullptr;  ///< borrowed resource; nullptr: the context makes a HostMemoryResource
};

/// Computes on the host. Changes no process-wide setting: each parallel region gets the thread count as an argument.
class CpuContext final : public Context {
 public:
  using Options = CpuContextOptions;
  explicit CpuContext(const Options& options = {});
  [[nodiscard]] int threads() const { return threads_; }

 private:
  int threads_;
};

struct CudaContextOptions {
  /// A stream that the host program owns and keeps alive, as in Stream::borrow_cuda(). A null handle means the device's
  /// legacy default stream. With nullopt, the context makes a non-blocking stream.
  std::optional<CUstream_st*> stream = std::nullopt;
  MemoryResource* memory = nullptr;  ///< borrowed resource; nullptr: the context makes a CudaPoolResource
  /// Largest number of bytes that the context's own memory resource may have in use; 0: no limit. A limit together with
  /// a borrowed resource (`memory`) is a UsageError.
  std::size_t memory_limit = 0;
  bool dependent_launches = false;  ///< true: calls Stream::launch_dependently(), which can throw
};

/// Computes on one CUDA device. Never changes the calling thread's current device. Declared in every build. The
/// constructor first calls check_gpu() (gpu_check.hpp); if the device cannot be used, a DeviceError gives the reason,
/// also in a build without CUDA.
class CudaContext final : public Context {
 public:
  using Options = CudaContextOptions;
  explicit CudaContext(Device device, const Options& options = {});
};

/// Makes a context with default options on a CPU or a GPU.
[[nodiscard]] std::unique_ptr<Context> make_context(Device device);

}  // namespace lockstep
