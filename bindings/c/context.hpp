#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>

#include <lockstep/lockstep.h>
#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/memory/memory_resource.hpp>

namespace lockstep::c {

/// A memory resource that uses the host program's allocator. Only one thread at a time may use this object and its
/// context.
class HostAllocator final : public MemoryResource {
 public:
  HostAllocator(const lockstep_allocator& functions, Device device) : functions_(functions), device_(device) {}
  /// Throws OutOfMemory if the allocate() of the host program returns NULL, and UsageError if that function throws.
  void* allocate(std::size_t bytes, std::size_t alignment, Stream& stream) override;
  void deallocate(void* pointer, std::size_t bytes, std::size_t alignment, Stream& stream) noexcept override;
  [[nodiscard]] Device device() const override { return device_; }
  [[nodiscard]] std::optional<MemoryUsage> usage() const override { return counter_.usage(); }

 private:
  lockstep_allocator functions_;
  Device device_;
  MemoryCounter counter_;
};

/// The object of a handle of type lockstep_context. Every object that is made with the context shares the ownership of
/// this object.
struct ContextObject {
  explicit ContextObject(const lockstep_context_options& options);

  [[nodiscard]] Device device() const { return context->device(); }
  /// Returns true if a CUDA graph can capture work on the context's stream. CUDA's legacy stream cannot be captured.
  [[nodiscard]] bool can_be_captured() const;

  /// Resource that allocates the context's memory: the host program's allocator, or a resource that counts bytes. If
  /// null, the context uses its own resource.
  std::unique_ptr<MemoryResource> host_memory;
  /// Resource from which `host_memory` allocates, if `host_memory` is a resource that counts bytes; otherwise null.
  std::unique_ptr<MemoryResource> limited;
  std::unique_ptr<Context> context;

  /// Marks the context as used while this object exists. The constructor throws StateError if another call uses the
  /// context.
  class Use {
   public:
    explicit Use(ContextObject& owner);
    ~Use() { owner_.used_.store(false, std::memory_order_release); }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    ContextObject& owner_;
  };

  /// Orders the GPU work of one call of the C interface. The constructor makes the context's stream wait for `stream`,
  /// the stream argument of the call. Nothing happens on the host, or if the two streams are the same.
  class Call {
   public:
    Call(ContextObject& owner, lockstep_stream stream);
    ~Call() = default;
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    /// Makes `stream` wait for the context's stream. Call end() after all work of the call is enqueued.
    void end();

   private:
    ContextObject& owner_;
    Stream* stream_ = nullptr;
  };

 private:
  std::atomic<bool> used_ = false;
  lockstep_stream last_stream_ = nullptr;  ///< stream that the last call named
  std::optional<Stream> borrowed_;         ///< last_stream_ as a Stream object
  std::optional<Event> before_;
  std::optional<Event> after_;
};

}  // namespace lockstep::c
