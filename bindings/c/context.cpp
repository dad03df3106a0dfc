#include <lockstep/c/context.hpp>

#include <cstdint>
#include <limits>

#include <lockstep/c/arguments.hpp>
#include <lockstep/c/entry.hpp>
#include <lockstep/c/handles.hpp>
#include <lockstep/runtime/base/error.hpp>

namespace lockstep::c {
namespace {

constexpr std::size_t kOldestOptions = sizeof(lockstep_context_options);
constexpr std::size_t kOldestAllocator = sizeof(lockstep_allocator);

lockstep_context_options default_options() {
  lockstep_context_options options{};
  options.struct_size = sizeof(options);
  options.device_type = LOCKSTEP_CPU;
  return options;
}

CUstream_st* cuda_stream(lockstep_stream stream) {
  return static_cast<CUstream_st*>(stream);
}

std::unique_ptr<MemoryResource> host_allocator(const lockstep_allocator* memory, Device device) {
  const lockstep_allocator functions = read_options(memory, {}, kOldestAllocator, "memory");
  require<UsageError>(functions.allocate != nullptr, "memory: allocate is NULL, expected a function");
  require<UsageError>(functions.deallocate != nullptr, "memory: deallocate is NULL, expected a function");
  require<UnsupportedError>(functions.flags == 0, "memory: flags is ", functions.flags, ", expected 0");
  return std::make_unique<HostAllocator>(functions, device);
}

}  // namespace

void* HostAllocator::allocate(std::size_t bytes, std::size_t alignment, Stream& stream) {
  if (bytes == 0) {
    return nullptr;
  }
  void* memory = nullptr;
  try {
    const InCallback here;
    memory = functions_.allocate(functions_.user, bytes, alignment,
                                 device_.kind == DeviceKind::cuda ? stream.cuda_handle() : nullptr);
  } catch (...) {
    throw UsageError(concat("the host program's allocate threw an exception when asked for ", bytes,
                            " bytes, expected NULL where there are none left"));
  }
  require<OutOfMemory>(memory != nullptr, "the host program's allocate gave NULL for ", bytes, " bytes on ", device_,
                       ", expected memory; ", counter_.usage().in_use, " bytes are in use");
  counter_.add(bytes);
  return memory;
}

void HostAllocator::deallocate(void* pointer, std::size_t bytes, std::size_t /*alignment*/, Stream& stream) noexcept {
  if (pointer == nullptr) {
    return;
  }
  try {
    const InCallback here;
    functions_.deallocate(functions_.user, pointer, bytes,
                          device_.kind == DeviceKind::cuda ? stream.cuda_handle() : nullptr);
  } catch (...) {  // nothing to do: this noexcept function cannot report the error
  }
  counter_.subtract(bytes);
}

ContextObject::ContextObject(const lockstep_context_options& options) {
  require<DeviceError>(options.device_type == LOCKSTEP_CPU || options.device_type == LOCKSTEP_CUDA,
                       "options: device_type is ", options.device_type,
                       ", expected 1 (LOCKSTEP_CPU) or 2 (LOCKSTEP_CUDA)");
  require<DeviceError>(options.device_id >= 0, "options: device_id is ", options.device_id, ", expected at least 0");
  require<UsageError>(options.threads >= 0, "options: threads is ", options.threads, ", expected at least 0");
  require<UsageError>(options.stream_kind == LOCKSTEP_STREAM_OWN || options.stream_kind == LOCKSTEP_STREAM_GIVEN,
                      "options: stream_kind is ", options.stream_kind,
                      ", expected 0 (LOCKSTEP_STREAM_OWN) or 1 (LOCKSTEP_STREAM_GIVEN)");
  require<UsageError>(options.memory_limit >= 0, "options: memory_limit is ", options.memory_limit,
                      ", expected at least 0");
  require<UsageError>(options.memory_limit == 0 || options.memory == nullptr, "options: memory_limit is ",
                      options.memory_limit, " and memory is given, expected one of the two");
  const bool host = options.device_type == LOCKSTEP_CPU;
  const Device device = host ? Device::cpu() : Device::cuda(options.device_id);
  const auto limit = static_cast<std::size_t>(options.memory_limit);
  if (options.memory != nullptr) {
    host_memory = host_allocator(options.memory, device);
  } else if (host) {
    limited = std::make_unique<HostMemoryResource>();
    host_memory = std::make_unique<TrackingMemoryResource>(
        *limited, limit != 0 ? limit : std::numeric_limits<std::size_t>::max());
  }
  if (host) {
    context = std::make_unique<CpuContext>(
        CpuContextOptions{.threads = options.threads, .stream = nullptr, .memory = host_memory.get()});
    return;
  }
  CudaContextOptions cuda{.stream = std::nullopt, .memory = host_memory.get(), .memory_limit = limit};
  if (options.stream_kind == LOCKSTEP_STREAM_GIVEN) {
    cuda.stream = cuda_stream(options.stream);
    last_stream_ = options.stream;
  }
  context = std::make_unique<CudaContext>(device, cuda);
  before_.emplace(device);
  after_.emplace(device);
}

bool ContextObject::can_be_captured() const {
  // This is the handle cudaStreamLegacy. A stream that was borrowed with the handle NULL has this handle, too.
  const auto legacy = reinterpret_cast<CUstream_st*>(std::uintptr_t{1});
  return device().kind == DeviceKind::cuda && context->stream().cuda_handle() != legacy;
}

ContextObject::Use::Use(ContextObject& owner) : owner_(owner) {
  require<StateError>(!owner.used_.exchange(true, std::memory_order_acquire),
                      "the context is used by another thread, expected one thread at a time: make a context for each "
                      "thread, and share the model (lockstep_model_share)");
}

ContextObject::Call::Call(ContextObject& owner, lockstep_stream stream) : owner_(owner) {
  if (owner.device().kind != DeviceKind::cuda) {
    return;
  }
  // The handles are compared after borrow_cuda(), because the two handles NULL and cudaStreamLegacy name one stream.
  if (!owner.borrowed_.has_value() || owner.last_stream_ != stream) {
    owner.borrowed_.emplace(Stream::borrow_cuda(owner.device(), cuda_stream(stream)));
    owner.last_stream_ = stream;
  }
  if (owner.borrowed_->cuda_handle() == owner.context->stream().cuda_handle()) {
    return;
  }
  stream_ = &*owner.borrowed_;
  stream_->record(*owner.before_);
  owner.context->stream().wait(*owner.before_);
}

void ContextObject::Call::end() {
  if (stream_ != nullptr) {
    owner_.context->stream().record(*owner_.after_);
    stream_->wait(*owner_.after_);
  }
}

}  // namespace lockstep::c

using namespace lockstep;
using namespace lockstep::c;

lockstep_status lockstep_context_options_init(lockstep_context_options* options, size_t size) noexcept {
  return entry("lockstep_context_options_init",
               [&] { write_options(options, size, default_options(), kOldestOptions, "options"); });
}

lockstep_status lockstep_context_create(const lockstep_context_options* options, lockstep_context* context) noexcept {
  return entry("lockstep_context_create", [&] {
    given(context, "context") = nullptr;
    const lockstep_context_options known = read_options(options, default_options(), kOldestOptions, "options");
    *context = make_handle<lockstep_context>(std::make_shared<ContextObject>(known));
  });
}

lockstep_status lockstep_context_destroy(lockstep_context context) noexcept {
  return entry("lockstep_context_destroy", [&] { destroy(context); });
}

lockstep_status lockstep_context_synchronize(lockstep_context context) noexcept {
  return entry("lockstep_context_synchronize", [&] {
    ContextObject& c = object_of(context);
    const ContextObject::Use use(c);
    c.context->synchronize();
  });
}

lockstep_status lockstep_context_memory(lockstep_context context, int64_t* in_use, int64_t* peak) noexcept {
  return entry("lockstep_context_memory", [&] {
    const std::optional<MemoryUsage> usage = object_of(context).context->memory().usage();
    given(in_use, "in_use") = usage.has_value() ? static_cast<std::int64_t>(usage->in_use) : -1;
    given(peak, "peak") = usage.has_value() ? static_cast<std::int64_t>(usage->peak) : -1;
  });
}
