#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>

#include <lockstep/lockstep.h>
#include <lockstep/runtime/context/context.hpp>
#include <lockstep/runtime/memory/memory_resource.hpp>

namespace lockstep::c {

/// The host program's allocator as a memory resource. It may be called by one thread at a time, as its context is.
class HostAllocator final : public MemoryResource {
 public:
  HostAllocator(const lockstep_allocator& functions, Device device) : functions_(functions), device_(device) {}
  /// OutOfMemory where the host's function returns NULL, UsageError where it throws.
  void* allocate(std::size_t bytes, std::size_t alignment, Stream& stream) override;
  void deallocate(void* pointer, std::size_t bytes, std::size_t alignment, Stream& stream) noexcept override;
  [[nodiscard]] Device device() const override { return device_; }
  [[nodiscard]] std::optional<MemoryUsage> usage() const override { return counter_.usage(); }

 private:
  lockstep_allocator functions_;
  Device device_;
  MemoryCounter counter_;
};

/// What a lockstep_context names. Everything made with it holds a share.
struct ContextObject {
  explicit ContextObject(const lockstep_context_options& options);

  [[nodiscard]] Device device() const { return context->device(); }
  /// Whether work on its stream may become a CUDA graph: not that of CUDA's legacy stream.
  [[nodiscard]] bool can_be_captured() const;

  std::unique_ptr<MemoryResource> host_memory;  ///< of the host program, or one with a limit; null: the context's own
  std::unique_ptr<MemoryResource> limited;      ///< what a limit is put on
  std::unique_ptr<Context> context;

  /// A call that uses the context, or what was made with it: StateError while another thread is in one.
  class Use {
   public:
    explicit Use(ContextObject& owner);
    ~Use() { owner_.used_.store(false, std::memory_order_release); }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    ContextObject& owner_;
  };

  /// Orders the context's stream behind a stream of the call, and that one behind the context's when it ends. Nothing
  /// on the host, or where the two are the same.
  class Call {
   public:
    Call(ContextObject& owner, lockstep_stream stream);
    ~Call() = default;
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    /// All is enqueued.
    void end();

   private:
    ContextObject& owner_;
    Stream* stream_ = nullptr;
  };

 private:
  std::atomic<bool> used_ = false;
  lockstep_stream last_stream_ = nullptr;  ///< of a call
  std::optional<Stream> borrowed_;         ///< the same as a Stream
  std::optional<Event> before_;
  std::optional<Event> after_;
};

}  // namespace lockstep::c
