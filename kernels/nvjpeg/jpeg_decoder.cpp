// This decoder calls nvjpegDecodeBatched(), and not the phases of the decoupled interface, for two reasons. The first
// reason is that for more than 50 baseline files nvjpegDecodeBatched() decodes the entropy code on the GPU as well
// (nvjpeg.h, NVJPEG_BACKEND_GPU_HYBRID), so that the host only reads headers. The second reason is that
// nvjpegDecodeBatched() needs one call for all files, while the phases need four calls per file.
//
// The decoder uses NVJPEG_BACKEND_GPU_HYBRID, and not the JPEG engines of A100, H100 and others
// (NVJPEG_BACKEND_HARDWARE), because the engines' writes do not wait for the stream. On an H100 with nvJPEG 12.3 to
// 13.2, nvjpegDecodeBatched() was seen to write its outputs before earlier work on the stream had run
// (github.com/meta-pytorch/torchcodec, pull request 1634). With these engines, the host would have to wait for the
// stream before each call. The engines also take no progressive files.
#include <lockstep/kernels/jpeg_decoder.hpp>

#include <array>
#include <cstddef>
#include <exception>
#include <iterator>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include <nvjpeg.h>

#include <lockstep/kernels/detail/loaded_api.hpp>
#include <lockstep/runtime/base/error.hpp>
#include <lockstep/runtime/cuda/check.hpp>
#include <lockstep/runtime/cuda/device_guard.hpp>
#include <lockstep/runtime/memory/cuda_memory.hpp>

namespace lockstep::ops {
namespace {

/// The functions of libnvjpeg that the decoder uses. The library is loaded when a decoder is first needed, so that
/// programs start on machines without the library.
struct Api {
  const SharedLibrary* from = nullptr;
  LOCKSTEP_FUNCTION(get_property, nvjpegGetProperty);
  LOCKSTEP_FUNCTION(create, nvjpegCreateExV2);
  LOCKSTEP_FUNCTION(destroy, nvjpegDestroy);
  LOCKSTEP_FUNCTION(state_create, nvjpegJpegStateCreate);
  LOCKSTEP_FUNCTION(state_destroy, nvjpegJpegStateDestroy);
  LOCKSTEP_FUNCTION(get_image_info, nvjpegGetImageInfo);
  LOCKSTEP_FUNCTION(decode_batched_initialize, nvjpegDecodeBatchedInitialize);
  LOCKSTEP_FUNCTION(decode_batched, nvjpegDecodeBatched);
};

using Loaded = detail::LoadedApi<Api>;

Loaded load() {
  return detail::load_api<Api>(
      "nvJPEG", {LOCKSTEP_NVJPEG_NAME, LOCKSTEP_NVJPEG_LIBRARY}, [](const Api& api) -> std::string {
        int major = 0;
        if (api.get_property(MAJOR_VERSION, &major) != NVJPEG_STATUS_SUCCESS || major != NVJPEG_VER_MAJOR) {
          return concat("nvJPEG is version ", major, ", this program was built with ", NVJPEG_VER_MAJOR, '.',
                        NVJPEG_VER_MINOR);
        }
        return {};
      });
}

const Loaded& loaded() {
  static const Loaded once = load();
  return once;
}

/// Returns the name of a status, because nvJPEG has no function that does so.
std::string text_of(nvjpegStatus_t status) {
  static constexpr const char* kNames[] = {"SUCCESS",
                                           "NOT_INITIALIZED",
                                           "INVALID_PARAMETER",
                                           "BAD_JPEG (damaged)",
                                           "JPEG_NOT_SUPPORTED (a kind of JPEG that nvJPEG lacks)",
                                           "ALLOCATOR_FAILURE",
                                           "EXECUTION_FAILED",
                                           "ARCH_MISMATCH",
                                           "INTERNAL_ERROR",
                                           "IMPLEMENTATION_NOT_SUPPORTED",
                                           "INCOMPLETE_BITSTREAM (cut off)"};
  static_assert(NVJPEG_STATUS_SUCCESS == 0 && NVJPEG_STATUS_INCOMPLETE_BITSTREAM == std::size(kNames) - 1);
  const auto number = static_cast<std::size_t>(status);
  return number < std::size(kNames) ? concat("NVJPEG_STATUS_", kNames[number]) : concat("status ", number);
}

/// Returns true if the cause of `status` may be the file. nvJPEG reports some damaged files as INTERNAL_ERROR. If a
/// failed device is the cause instead, the next file fails, too, and CUDA reports the failure at the next call.
bool is_of_file(nvjpegStatus_t status) {
  switch (status) {
    case NVJPEG_STATUS_INVALID_PARAMETER:
    case NVJPEG_STATUS_BAD_JPEG:
    case NVJPEG_STATUS_JPEG_NOT_SUPPORTED:
    case NVJPEG_STATUS_INTERNAL_ERROR:
    case NVJPEG_STATUS_INCOMPLETE_BITSTREAM:
      return true;
    default:
      return false;
  }
}

/// Allocates device memory of the context, and pinned memory, for nvJPEG. In nvJPEG's second allocator interface, an
/// allocation names the stream that will use the memory first, and a deallocation names the stream that used it last.
/// If the named stream is not the context's stream, the host waits, as cudaFree() would: an allocation waits for the
/// context's stream, a deallocation for the named stream.
///
/// nvJPEG keeps memory that it has allocated until the decoder is destroyed, or until a larger batch needs more.
class Memory {
 public:
  explicit Memory(Context& context) : context_(context), pinned_(context.device()) {}
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  nvjpegDevAllocatorV2_t* device_allocator() { return &device_allocator_; }
  nvjpegPinnedAllocatorV2_t* pinned_allocator() { return &pinned_allocator_; }

  /// Returns and clears the error of the last allocation that has failed since the previous call of take_error().
  /// Returns null if none has failed.
  std::exception_ptr take_error() {
    const std::lock_guard lock(mutex_);
    return std::exchange(error_, nullptr);
  }

 private:
  static int allocate_device(void* self, void** pointer, std::size_t bytes, cudaStream_t stream) noexcept {
    auto& memory = *static_cast<Memory*>(self);
    return memory.allocate(memory.context_.memory(), pointer, bytes, stream);
  }
  static int allocate_pinned(void* self, void** pointer, std::size_t bytes, cudaStream_t stream) noexcept {
    auto& memory = *static_cast<Memory*>(self);
    return memory.allocate(memory.pinned_, pointer, bytes, stream);
  }
  static int free_device(void* self, void* pointer, std::size_t /*bytes*/, cudaStream_t stream) noexcept {
    auto& memory = *static_cast<Memory*>(self);
    return memory.deallocate(memory.context_.memory(), pointer, stream);
  }
  static int free_pinned(void* self, void* pointer, std::size_t /*bytes*/, cudaStream_t stream) noexcept {
    auto& memory = *static_cast<Memory*>(self);
    return memory.deallocate(memory.pinned_, pointer, stream);
  }

  /// Allocates memory. Returns a status, because no exception may pass through nvJPEG, or leave a thread of nvJPEG.
  int allocate(MemoryResource& resource, void** pointer, std::size_t bytes, cudaStream_t stream) noexcept {
    const std::lock_guard lock(mutex_);
    void* given = nullptr;
    try {
      given = resource.allocate(bytes, kAlignment, context_.stream());
      if (!is_ours(stream)) {
        context_.synchronize();
      }
      sizes_[given] = bytes;
    } catch (...) {
      error_ = std::current_exception();
      resource.deallocate(given, bytes, kAlignment, context_.stream());
      return cudaErrorMemoryAllocation;
    }
    *pointer = given;
    return cudaSuccess;
  }

  int deallocate(MemoryResource& resource, void* pointer, cudaStream_t stream) noexcept {
    const std::lock_guard lock(mutex_);
    const auto found = sizes_.find(pointer);
    if (found == sizes_.end()) {
      return cudaErrorInvalidValue;
    }
    if (!is_ours(stream)) {
      const cuda::DeviceGuard guard(context_.device(), std::nothrow);
      cuda::ignore(cudaStreamSynchronize(stream != nullptr ? stream : cudaStreamLegacy));
    }
    resource.deallocate(pointer, found->second, kAlignment, context_.stream());
    sizes_.erase(found);
    return cudaSuccess;
  }

  [[nodiscard]] bool is_ours(cudaStream_t stream) const { return stream == context_.stream().cuda_handle(); }

  Context& context_;
  PinnedMemoryResource pinned_;
  nvjpegDevAllocatorV2_t device_allocator_{allocate_device, free_device, this};
  nvjpegPinnedAllocatorV2_t pinned_allocator_{allocate_pinned, free_pinned, this};
  std::mutex mutex_;
  std::unordered_map<void*, std::size_t> sizes_;
  std::exception_ptr error_;
};

void require_usable(Device device) {
  const std::string problem = jpeg_decoder_problem(device);
  require<UnsupportedError>(problem.empty(), "JPEG decoder: ", problem);
}

}  // namespace

std::string jpeg_decoder_problem(Device device) {
  if (device.kind != DeviceKind::cuda) {
    return concat("nvJPEG decodes on GPUs, not on ", device);
  }
  return loaded().problem;
}

std::string jpeg_decoder_version() {
  if (!loaded().problem.empty()) {
    return {};
  }
  std::string text = "nvJPEG";
  for (const libraryPropertyType part : {MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL}) {
    int number = 0;
    static_cast<void>(loaded().api.get_property(part, &number));
    text += concat(part == MAJOR_VERSION ? ' ' : '.', number);
  }
  return text;
}

class JpegDecoder::State {
 public:
  State(Context& context, const Options& options)
      : context_(context), options_(options), memory_(context), decoded_(context.device()) {
    require<UsageError>(options.most >= 1 && options.most <= kMost, "JPEG decoder: most is ", options.most,
                        ", expected 1 to ", kMost);
    require<UsageError>(options.host_threads >= 1, "JPEG decoder: host_threads is ", options.host_threads,
                        ", expected 1 or more");
    const auto count = static_cast<std::size_t>(options.most);
    data_.reserve(count);
    lengths_.reserve(count);
    images_.reserve(count);
    const cuda::DeviceGuard guard(context.device());
    try {
      start(api_.create(NVJPEG_BACKEND_GPU_HYBRID, memory_.device_allocator(), memory_.pinned_allocator(),
                        NVJPEG_FLAGS_DEFAULT, &handle_));
      start(api_.state_create(handle_, &jpeg_));
    } catch (...) {
      close();
      throw;
    }
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    try {
      context_.synchronize();
    } catch (...) {  // other work on the stream has failed; whoever enqueued that work gets the error
    }
    const cuda::DeviceGuard guard(context_.device(), std::nothrow);
    close();
  }

  void decode(std::span<const File> files) {
    require<UsageError>(std::ssize(files) <= options_.most, "JPEG decoder: ", files.size(), " files, expected at most ",
                        options_.most);
    for (std::size_t i = 0; i < files.size(); ++i) {
      const File& file = files[i];
      require<UsageError>(file.width >= 1 && file.height >= 1 && file.pixels != nullptr, "JPEG decoder: file ", i,
                          " of ", files.size(), " has ", file.width, " x ", file.height, " pixels at ",
                          static_cast<const void*>(file.pixels), ", expected an address and at least 1 x 1");
    }
    if (files.empty()) {
      return;
    }
    const cuda::DeviceGuard guard(context_.device());
    for (std::size_t i = 0; i < files.size(); ++i) {
      failed_ = static_cast<std::int64_t>(i);
      check_header(files, i);
    }
    // Waits until the files of the previous call are decoded. Until then that call uses the memory of nvJPEG's state.
    decoded_.synchronize();
    static_cast<void>(memory_.take_error());  // drops an error that nvJPEG has handled
    const nvjpegStatus_t status = enqueue(files);
    if (status == NVJPEG_STATUS_SUCCESS) {
      context_.stream().record(decoded_);
      return;
    }
    // nvJPEG does not report which file failed, so each file is decoded alone.
    context_.synchronize();
    require_memory();
    for (std::size_t i = 0; is_of_file(status) && i < files.size(); ++i) {
      failed_ = static_cast<std::int64_t>(i);
      const nvjpegStatus_t alone = enqueue(files.subspan(i, 1));
      context_.synchronize();
      require_memory();
      require<DataError>(alone == NVJPEG_STATUS_SUCCESS || !is_of_file(alone), "file ", i, " of ", files.size(),
                         ": nvJPEG: ", text_of(alone), "; expected a JPEG file that nvJPEG decodes");
      require<Error>(alone == NVJPEG_STATUS_SUCCESS, "nvJPEG: file ", i, " of ", files.size(), ": ", text_of(alone));
    }
    const std::string text = concat("nvJPEG: ", files.size(), " files together: ", text_of(status));
    require<OutOfMemory>(status != NVJPEG_STATUS_ALLOCATOR_FAILURE, text);
    throw Error(text);
  }

  [[nodiscard]] std::int64_t most() const { return options_.most; }
  [[nodiscard]] std::int64_t failed() const { return failed_; }

 private:
  static constexpr std::int64_t kMost = 65536;  // largest number of files in a call: nvJPEG counts files in an int

  /// If `status` is not success, throws the error of an allocation that failed; if none failed, throws UnsupportedError
  /// with the reason why nvJPEG does not start.
  void start(nvjpegStatus_t status) {
    if (status != NVJPEG_STATUS_SUCCESS) {
      require_memory();
      throw UnsupportedError(
          concat("JPEG decoder: nvJPEG does not start on ", context_.device(), ": ", text_of(status)));
    }
  }

  /// If an allocation for nvJPEG has failed, throws its error.
  void require_memory() {
    if (const std::exception_ptr error = memory_.take_error()) {
      std::rethrow_exception(error);
    }
  }

  /// Checks the header of file i. The extents that nvJPEG reads must equal the caller's extents; otherwise the pixels
  /// may not fit into the caller's memory.
  void check_header(std::span<const File> files, std::size_t i) const {
    const File& file = files[i];
    int channels = 0;
    nvjpegChromaSubsampling_t subsampling = NVJPEG_CSS_UNKNOWN;
    std::array<int, NVJPEG_MAX_COMPONENT> widths{};
    std::array<int, NVJPEG_MAX_COMPONENT> heights{};
    nvjpegStatus_t status = NVJPEG_STATUS_INCOMPLETE_BITSTREAM;
    if (!file.bytes.empty()) {
      status = api_.get_image_info(handle_, file.bytes.data(), file.bytes.size(), &channels, &subsampling,
                                   widths.data(), heights.data());
    }
    require<DataError>(status == NVJPEG_STATUS_SUCCESS, "file ", i, " of ", files.size(),
                       ": nvJPEG cannot read the header: ", text_of(status), "; expected a JPEG file");
    require<DataError>(channels == 1 || channels == 3, "file ", i, " of ", files.size(), ": ", channels,
                       " channels, expected 1 (grey) or 3 (YCbCr)");
    require<DataError>(widths[0] == file.width && heights[0] == file.height, "file ", i, " of ", files.size(),
                       ": nvJPEG reads ", widths[0], " x ", heights[0], " pixels in the header, expected ", file.width,
                       " x ", file.height);
  }

  /// Enqueues the decoding of `files`; the files of the previous call must already be decoded. If the previous call had
  /// another number of files, or failed, first prepares nvJPEG's state.
  nvjpegStatus_t enqueue(std::span<const File> files) {
    nvjpegStatus_t status = NVJPEG_STATUS_SUCCESS;
    if (std::exchange(prepared_, 0) != files.size()) {
      status = api_.decode_batched_initialize(handle_, jpeg_, static_cast<int>(files.size()), options_.host_threads,
                                              NVJPEG_OUTPUT_RGBI);
      if (status != NVJPEG_STATUS_SUCCESS) {
        return status;
      }
    }
    data_.clear();
    lengths_.clear();
    images_.clear();
    for (const File& file : files) {
      data_.push_back(file.bytes.data());
      lengths_.push_back(file.bytes.size());
      nvjpegImage_t& image = images_.emplace_back();
      image.channel[0] = file.pixels;
      image.pitch[0] = static_cast<std::size_t>(file.width) * 3;
    }
    status = api_.decode_batched(handle_, jpeg_, data_.data(), lengths_.data(), images_.data(),
                                 context_.stream().cuda_handle());
    if (status == NVJPEG_STATUS_SUCCESS) {
      prepared_ = files.size();
    }
    return status;
  }

  void close() noexcept {
    if (jpeg_ != nullptr) {
      static_cast<void>(api_.state_destroy(jpeg_));
    }
    if (handle_ != nullptr) {
      static_cast<void>(api_.destroy(handle_));
    }
  }

  const Api& api_ = loaded().api;
  Context& context_;
  Options options_;
  Memory memory_;
  Event decoded_;             // event: the files of the last decode() are decoded
  std::int64_t failed_ = 0;   // index of the last file that was checked, or decoded alone
  std::size_t prepared_ = 0;  // number of files for which nvJPEG's state is prepared; 0 if it is not prepared
  nvjpegHandle_t handle_ = nullptr;
  nvjpegJpegState_t jpeg_ = nullptr;
  std::vector<const unsigned char*> data_;
  std::vector<std::size_t> lengths_;
  std::vector<nvjpegImage_t> images_;
};

JpegDecoder::JpegDecoder(Context& context, const Options& options) {
  require_usable(context.device());
  state_ = std::make_unique<State>(context, options);
}

JpegDecoder::JpegDecoder(JpegDecoder&&) noexcept = default;
JpegDecoder& JpegDecoder::operator=(JpegDecoder&&) noexcept = default;
JpegDecoder::~JpegDecoder() = default;

void JpegDecoder::decode(std::span<const File> files) {
  state_->decode(files);
}

std::int64_t JpegDecoder::most() const {
  return state_->most();
}

std::int64_t JpegDecoder::failed() const {
  return state_->failed();
}

}  // namespace lockstep::ops
