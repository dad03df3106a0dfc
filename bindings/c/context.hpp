#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>

#include <lockstep/lockstep.h>
#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/memory/memory_resource.hpp>

namespace lockstep::c {

/// A memory resource over the host program's allocator. One thread at a time may use it, as for its context.
class HostAllocator final : public MemoryResource {
 public:
  HostAllocator(const lockstep_allocator& functions, Device device) : functions_(functions), device_(device) {}
  /// Throws OutOfMemory when the host program's function returns NULL, UsageError when that function throws.
  void* allocate(std::size_t bytes, std::size_t alignment, Stream& stream) override;
  void deallocate(void* pointer, std::size_t bytes, std::size_t alignment, Stream& stream) noexcept override;
  [[nodiscard]] Device device() const override { return device_; }
  [[nodiscard]] std::optional<MemoryUsage> usage() const override { return counter_.usage(); }

 private:
  lockstep_allocator functions_;
  Device device_;
  MemoryCounter counter_;
};

/// The object that a lockstep_context names. Every object made with it holds a share in it.
struct ContextObject {
  explicit ContextObject(const lockstep_context_options& options);

  [[nodiscard]] Device device() const { return context->device(); }
  /// True when work on the context's stream may be captured in a CUDA graph; false for CUDA's legacy stream.
  [[nodiscard]] bool can_be_captured() const;

  /// The host program's allocator or a counting resource; null: the context uses its own memory.
  std::unique_ptr<MemoryResource> host_memory;
  std::unique_ptr<MemoryResource> limited;  ///< resource that host_memory counts and limits; null: none
  std::unique_ptr<Context> context;

  /// Marks the context as used while a call runs. StateError while another thread is in a call of the context.
  class Use {
   public:
    explicit Use(ContextObject& owner);
    ~Use() { owner_.used_.store(false, std::memory_order_release); }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    ContextObject& owner_;
  };

  /// Makes the context's stream wait for `stream`; end() makes `stream` wait for the context's stream. Does nothing on
  /// the host, or when the two streams are the same.
  class Call {
   public:
    Call(ContextObject& owner, lockstep_stream stream);
    ~Call() = default;
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    /// Makes `stream` wait for the call; to be called when all work of the call is enqueued.
    void end();

   private:
    ContextObject& owner_;
    Stream* stream_ = nullptr;
  };

 private:
  std::atomic<bool> used_ = false;
  lockstep_stream last_stream_ = nullptr;  ///< stream of the last call
  std::optional<Stream> borrowed_;         ///< last_stream_ as a Stream
  std::optional<Event> before_;
  std::optional<Event> after_;
};

}  // namespace lockstep::c
